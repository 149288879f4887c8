"""How near planners without a model come to the best there is, on response surfaces whose truth is known.

    python benchmarks/planner_search.py [--seeds 20] [--experiments 60]

Campaigns in memory: eight knobs from an inherited configuration, each change measured at 5, 10 and 20 noisy pairs and
judged by the project's own rule (`tests/unit/simulation.py`). `steps` is the search's first phase alone, which was the
whole search before; `tpe` screens one knob at a time and then only draws from Optuna's TPE; `search` is what ships:
steps first, TPE after them. Prints a Markdown table; nothing is timed, and the same seeds give the same table.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "unit"))

from simulation import SURFACES, simulate

from infra_agent.planner import Planner
from infra_agent.planner.chance import RandomPlanner
from infra_agent.planner.search import SearchPlanner

PLANNERS: dict[str, Callable[[int], Planner]] = {
    "steps": lambda seed: SearchPlanner(seed, ("local",)),
    "tpe": lambda seed: SearchPlanner(seed, ("joint",)),
    "search": SearchPlanner,
    "random": RandomPlanner,
}
NEAR = 0.02


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20, help="campaigns of each planner on each surface")
    parser.add_argument("--experiments", type=int, default=60, help="budget of each")
    options = parser.parse_args()
    marks = [n for n in (8, 15, 25, 40) if n < options.experiments] + [options.experiments]
    heads = " | ".join(f"gap after {n}" for n in marks)
    print(f"| surface | planner | {heads} | experiments to within {NEAR:.0%} |\n|---|---|{'---|' * (len(marks) + 1)}")
    for surface, make in SURFACES.items():
        for name, planner in PLANNERS.items():
            seeds = range(options.seeds)
            courses = [simulate(make(seed), planner(seed), options.experiments, seed) for seed in seeds]
            gaps = " | ".join(f"{fmean(course.gap(n) for course in courses):.1%}" for n in marks)
            needed = fmean(course.needed(NEAR, options.experiments) for course in courses)
            print(f"| {surface} | {name} | {gaps} | {needed:.1f} |", flush=True)


if __name__ == "__main__":
    main()
