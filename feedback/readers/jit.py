"""Logs of just-in-time compilers as events: TORCH_LOGS=recompiles (torch 2.3 to 2.13), Triton 3 autotuning.

What is looked for stands in `jit.toml`; a recompilation is one event a function. Format: `torch/_logging`,
`triton/runtime/autotuner.py`.
"""

from __future__ import annotations

import re
from pathlib import Path

from feedback.observations import RuntimeEvent
from feedback.readers import engine_log
from sandboxes.results import ArmName

TABLE = "jit"
_TELLING = re.compile(
    rb"\[__recompiles\]|torch\._dynamo hit config\.|Triton autotuning for function |^AUTOTUNE \w+\(", re.MULTILINE
)


def fits(path: Path, head: bytes) -> bool:
    """Whether a compiler speaks at the beginning, and no inference engine around it."""
    return bool(_TELLING.search(head)) and not engine_log.fits(path, head)


def read(path: Path, probe: str, stage: str, arm: ArmName) -> list[RuntimeEvent]:
    """Recompilations by function, failed guards, autotuning. Raises OSError; whatever the file holds is readable."""
    return engine_log.read_table(path, TABLE, "jit", (probe, stage, arm))
