"""`infra-agent feedback`: what `feedback.cli` does, with a memory of what was compared and of what campaigns found."""

from __future__ import annotations

from collections.abc import Sequence

from feedback import cli
from infra_agent.cli.output import note, result
from infra_agent.comparisons import Comparisons
from infra_agent.errors import WrongUse
from infra_agent.settings import load_settings


def feedback(arguments: Sequence[str]) -> int:
    """Run `infra-agent feedback ARGUMENTS`; returns the exit code. Raises WrongUse."""
    memory = Comparisons(load_settings(), note)
    try:
        return cli.run(arguments, result, cli.Memory(memory.keep, memory.recall), "infra-agent feedback")
    except cli.Wrong as error:
        raise WrongUse(str(error)) from error
