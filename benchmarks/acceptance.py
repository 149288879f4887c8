"""What the acceptance rule accepts when nothing changed, and what it finds when something did.

    python benchmarks/acceptance.py [--aa 200] [--power 40] [--json FILE]

Every comparison is a whole experiment of the product: fresh sandboxes and processes, first measurement,
confirmation, one campaign-wide error budget. Truth is known because the work is: `benchmarks/known_work` does
equal units of work, and the faster arm does fewer. Prints a Markdown table; takes about an hour on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scipy.stats import binomtest

from feedback.stats import noise_floor
from infra_agent import host
from infra_agent.bench import Site
from infra_agent.domain import Budget, CampaignSpec, Change, Experiment, Hypothesis, Proposal, State
from infra_agent.experiment import conduct
from infra_agent.journal import Journal
from infra_agent.lab import Lab
from infra_agent.noise import measure_noise
from infra_agent.policy import confirm_alpha, error_share
from infra_agent.target import load_target
from sandboxes.workspace import Repository

UNITS = 1000
GAINS = (0.02, 0.03, 0.05, 0.10)
PLANNED = 50
"""Experiments of the campaign whose error budget the comparisons obey."""


class Comparison(NamedTuple):
    """One experiment and what was concluded."""

    true_gain: float
    screened: bool
    accepted: bool
    estimate: float
    pairs: int
    wall_s: float


def compare(lab: Lab, base: str, number: int, gain: float, alpha: float) -> Comparison:
    """One whole experiment on a change whose true gain is known."""
    knobs = {"units": round(UNITS * (1 - gain)), "label": number}
    experiment = Experiment(
        id=f"exp_{number}", campaign_id="acceptance", number=number, role="change", state=State.RUNNING,
        proposal=Proposal(hypothesis=Hypothesis(claim="known work"), change=Change(knobs=knobs)),
        parent_commit=base, alpha=alpha,
    )  # fmt: skip
    started = time.monotonic()
    outcome = conduct(lab, experiment)
    wall_s = time.monotonic() - started
    screened = any(m.stage == "confirm" for m in outcome.samples)
    effect = outcome.effects[0] if outcome.effects else None
    pairs = len({(m.stage, m.pair) for m in outcome.samples})
    return Comparison(gain, screened, outcome.confirmed, effect.improvement if effect else 0.0, pairs, wall_s)


def rate(hits: int, n: int) -> str:
    """A rate with its 95 % Clopper-Pearson interval."""
    interval = binomtest(hits, n).proportion_ci(0.95)
    return f"{hits}/{n} = {hits / n:.1%} [{interval.low:.1%}, {interval.high:.1%}]"


def table(comparisons: list[Comparison]) -> str:
    """The results as Markdown."""
    rows = [
        "| true gain | passed the first measurement | accepted (confirmed) | estimate, median "
        "| pairs | s a comparison, median / p90 |",
        "|---|---|---|---|---|---|",
    ]
    for gain in sorted({c.true_gain for c in comparisons}):
        group = [c for c in comparisons if c.true_gain == gain]
        walls = sorted(c.wall_s for c in group)
        accepted = [c for c in group if c.accepted] or group
        rows.append(
            f"| {gain:.0%} | {rate(sum(c.screened for c in group), len(group))} "
            f"| {rate(sum(c.accepted for c in group), len(group))} "
            f"| {statistics.median(c.estimate for c in accepted):+.2%} "
            f"| {statistics.median(c.pairs for c in group):g} "
            f"| {statistics.median(walls):.1f} / {walls[int(0.9 * (len(walls) - 1))]:.1f} |"
        )
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--aa", type=int, default=200, help="comparisons without any change")
    parser.add_argument("--power", type=int, default=40, help="comparisons at each true gain")
    parser.add_argument("--json", type=Path, help="also write every comparison to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        source = Path(__file__).parent / "known_work"
        spec, _ = load_target(source)
        repository, base, _ = Repository.create(work / "repo", source)
        lab = Lab(Site(spec, repository, {}), work / "runs", None, lambda _: None)
        noise = measure_noise(lab, base, 40, host.fingerprint())
        floor = noise_floor(noise.units)
        lab = lab._replace(noise=noise)
        alpha = error_share(Journal(), CampaignSpec(target="known-work", budget=Budget(experiments=PLANNED)))
        print(f"host: {host.cpu_model()}, {len(host.cpus())} CPUs, load {os.getloadavg()[0]:.1f} at the start")
        print(
            f"noise floor {floor.value:.2%} from {floor.n_units} A/A pairs, sd of a pair {floor.sd:.2%}; error budget "
            f"of a campaign of {PLANNED}: {alpha:.4f} an experiment, {confirm_alpha(alpha):.3f} for its confirmation\n",
            flush=True,
        )
        gains = [g for n in range(max(options.aa, options.power)) for g in _round(n, options)]
        comparisons = []
        for number, gain in enumerate(gains, 1):
            comparisons.append(compare(lab, base, number, gain, alpha))
            if options.json:
                text = json.dumps({"floor": floor._asdict(), "comparisons": [c._asdict() for c in comparisons]})
                options.json.write_text(text)
        print(table(comparisons))
        print(f"\nload {os.getloadavg()[0]:.1f} at the end")


def _round(n: int, options: argparse.Namespace) -> list[float]:
    """What is compared in round n: the kinds alternate, so that all meet the same moods of the machine."""
    every = max(1, options.aa // options.power) if options.power else 0
    powered = list(GAINS) if options.power and n % every == 0 and n // every < options.power else []
    return ([0.0] if n < options.aa else []) + powered


if __name__ == "__main__":
    main()
