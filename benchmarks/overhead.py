"""The orchestrator's own cost per experiment: everything but sandboxed work and model time.

    python benchmarks/overhead.py [--experiments 40]

Runs a real campaign (store, git, journal, planner, sandbox, readers, rules, verdict) of scripted no-op changes
on `benchmarks/known_work` and prints wall time, sandboxed time and the rest, an experiment.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from infra_agent import commands, host
from infra_agent.domain import Budget, CampaignSpec
from infra_agent.settings import load_settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--experiments", type=int, default=40)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        target = work / "target"
        shutil.copytree(Path(__file__).parent / "known_work", target)
        text = (target / "target.toml").read_text()
        (target / "target.toml").write_text(text + "looks = [5]\nslice_target_s = 0.001\nmax_repeats = 0\n")
        script = work / "script.toml"
        entries = (
            f'[[propose]]\nclaim = "label {n}"\nknobs = {{ label = {n} }}\n' for n in range(1, 1 + options.experiments)
        )
        script.write_text("\n".join(entries))
        settings = load_settings({"INFRA_AGENT_HOME": str(work / "home")})
        spec = CampaignSpec(
            target=str(target), planner=f"script:{script}", budget=Budget(experiments=options.experiments)
        )
        started = time.monotonic()
        campaign = commands.start(settings, spec)
        prepared_s = time.monotonic() - started
        marks: list[float] = []
        ran = commands.run(settings, campaign.id, lambda event: marks.append(time.monotonic()), lambda _: None)
        changes = [e for e in ran.journal.experiments if e.role == "change"]
        # A mark at each start and end; one lap is end to end: planning, storing, measuring, judging, storing.
        ends = marks[1::2]
        laps = [after - before for before, after in pairwise(ends)]
        own = [lap - e.sandbox_s for lap, e in zip(laps, changes, strict=False)]
        print(f"host: {host.cpu_model()}, {len(host.cpus())} CPUs, load {os.getloadavg()[0]:.1f}")
        print(f"start of the campaign: {prepared_s * 1e3:.0f} ms; {len(own)} experiments of 5 pairs x 28 slices")
        print("| per experiment | median | p90 |\n|---|---|---|")
        for name, values in (("wall", laps), ("sandboxed", [e.sandbox_s for e in changes]), ("own cost", own)):
            print(f"| {name} | {median(values) * 1e3:.1f} ms | {sorted(values)[int(0.9 * len(values))] * 1e3:.1f} ms |")


if __name__ == "__main__":
    main()
