"""Where experiments are conducted."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from feedback import stats
from infra_agent.bench import Site
from infra_agent.domain import Experiment, NoiseUnits
from infra_agent.target import LogprobsProbe, PairedProbe, TargetSpec


class Lab(NamedTuple):
    """Where experiments are conducted: the target, its repository and what is known of this host's noise."""

    site: Site
    runs: Path
    """Directory that holds one run directory an experiment."""
    noise: NoiseUnits | None
    """A/A units of the objective on this host, if there are enough fresh ones."""
    say: Callable[[str], None]
    """Told what is being done, for people who wait."""
    deadline_s: float | None = None
    """time.monotonic() after which no further pair is begun; None without a time budget."""

    def seconds_left(self) -> float | None:
        """Wall time until the deadline, or None without one."""
        return None if self.deadline_s is None else max(0.0, self.deadline_s - time.monotonic())

    def within(self, share: float) -> Lab:
        """The same lab with a deadline that leaves the rest of the time for something else."""
        left = self.seconds_left()
        return self if left is None else self._replace(deadline_s=time.monotonic() + share * left)

    @property
    def spec(self) -> TargetSpec:
        """The target."""
        return self.site.spec

    def objective_probe(self) -> PairedProbe:
        """The probe that measures the objective."""
        probe = self.spec.probe(self.spec.objective.probe)
        assert isinstance(probe, PairedProbe)  # target.toml is refused otherwise
        return probe

    def floor(self) -> tuple[float, bool]:
        """Noise floor of the objective as a fraction, and whether it was measured here."""
        if self.noise is None or len(self.noise.units) < stats.MIN_FLOOR_UNITS:
            return self.objective_probe().default_margin, False
        return stats.noise_floor(self.noise.units).value, True

    def with_reference(self, baseline: Experiment | None) -> Lab:
        """The lab with the original's parity scores, once the campaign's baseline run holds them."""
        probe = next((p for p in self.spec.probes if isinstance(p, LogprobsProbe)), None)
        if probe is None or baseline is None:
            return self
        scores = self.runs / baseline.id / f"screen-{probe.name}.jsonl"
        return self._replace(site=self.site._replace(parity_reference=scores))
