"""What no change looks like on this host: A/A units of the objective."""

from __future__ import annotations

import math
import time
from datetime import timedelta

from feedback import stats
from feedback.observations import Measurement
from feedback.signals import CodeLocation
from infra_agent.bench import Stage
from infra_agent.domain import NoiseUnits, Outcome
from infra_agent.experiment import measure
from infra_agent.lab import Lab
from infra_agent.policy import SCREEN_ALPHA

NOISE_MAX_AGE = timedelta(days=7)
"""A noise floor older than this is measured anew."""


NOISE_RUN = "noise"
"""Run directory of A/A pairs that belong to no experiment."""


def measure_noise(lab: Lab, base: str, pairs: int, host_fingerprint: str) -> NoiseUnits:
    """A/A pairs of the objective: builds and the objective's probe only, baseline against itself."""
    stage = Stage(name="screen", baseline=base, candidate=base, seed=time.time_ns() & 0x7FFFFFFF, pairs=pairs)
    place = (CodeLocation(file="the whole target", symbol="baseline"),)
    measured = measure(lab, stage, lab.runs / NOISE_RUN, place, SCREEN_ALPHA, None, gates=False)
    objective = lab.spec.objective
    samples = [o for o in measured.observations if isinstance(o, Measurement)]
    units = stats.paired_units(samples, objective.metric).values
    return NoiseUnits(
        host_fingerprint=host_fingerprint, target_name=lab.spec.name, probe=lab.spec.noise_probe,
        metric=objective.metric, direction=objective.direction, units=units,
    )  # fmt: skip


def noise_units(lab: Lab, outcome: Outcome, host_fingerprint: str) -> NoiseUnits | None:
    """The A/A units of a baseline measurement, for the host's noise floor."""
    objective = lab.spec.objective
    units = stats.paired_units(outcome.samples, objective.metric).values
    if not units or not all(math.isfinite(u) for u in units):
        return None
    return NoiseUnits(
        host_fingerprint=host_fingerprint, target_name=lab.spec.name, probe=lab.spec.noise_probe,
        metric=objective.metric, direction=objective.direction, units=units,
    )  # fmt: skip
