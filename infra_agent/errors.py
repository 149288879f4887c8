"""One error root. The message of a class without its own text is its docstring; every message says what to do."""

from __future__ import annotations


class InfraAgentError(Exception):
    """Something went wrong in infra-agent."""

    exit_code = 1

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class WrongUse(InfraAgentError):
    """The command was used wrongly; see `infra-agent --help`."""

    exit_code = 2


class TargetInvalid(WrongUse):
    """The target's target.toml is not valid."""


class NotFound(WrongUse):
    """No such campaign; `infra-agent list` shows those that exist."""


class ModelUnavailable(InfraAgentError):
    """The model endpoint can't be used; check OPENAI_BASE_URL and OPENAI_API_KEY, or use --planner search."""

    exit_code = 4


class PlatformFailed(InfraAgentError):
    """The platform failed, not the candidate; nothing was recorded against it."""

    exit_code = 5


class StoreUnavailable(PlatformFailed):
    """The database or its disk can't be used; check that it is there, writable and not full."""


class AlreadyRecorded(InfraAgentError):
    """This was recorded before, and what a campaign recorded is never changed."""
