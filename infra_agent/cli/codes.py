"""Exit codes of the program; that of an interruption stands where it is needed first."""

from infra_agent.cli import INTERRUPTED
from infra_agent.errors import InfraAgentError

DONE, WRONG_USE, NOTHING_ACCEPTED, PLATFORM, PIPE = 0, 2, 3, 5, 141

__all__ = ["DONE", "INTERRUPTED", "NOTHING_ACCEPTED", "PIPE", "PLATFORM", "WRONG_USE", "Interrupted"]


class Interrupted(InfraAgentError):
    """interrupted"""

    exit_code = INTERRUPTED
