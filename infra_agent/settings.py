"""Deployment settings, read from the environment. `.env.example` lists exactly these."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from infra_agent.errors import WrongUse


class Settings(BaseModel):
    """Where infra-agent keeps things, which database and which model it uses."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    home: Path = Field(alias="INFRA_AGENT_HOME")
    """Campaigns, artefacts and downloaded packages live here. Default: $XDG_DATA_HOME/infra-agent."""
    database_url: str = Field(alias="INFRA_AGENT_DATABASE_URL", repr=False)
    """SQLAlchemy URL, which may hold a password. Default: SQLite in the home."""
    model: str = Field(default="", alias="INFRA_AGENT_MODEL")
    """Model name for the LLM planner."""
    openai_api_key: str = Field(default="", alias="OPENAI_API_KEY", repr=False)
    """Key of the model endpoint."""
    openai_base_url: str = Field(default="", alias="OPENAI_BASE_URL")
    """OpenAI-compatible endpoint; empty means the `openai` package's default."""
    model_context: int = Field(default=128_000, ge=2_048, le=100_000_000, alias="INFRA_AGENT_MODEL_CONTEXT")
    """Tokens that a request and its answer may have together."""
    prices: str = Field(default="", alias="INFRA_AGENT_PRICES")
    """A price table of models that wins over the shipped one; empty means only that one."""

    @property
    def has_model(self) -> bool:
        """Whether an LLM planner can be built: a model name and a key or an endpoint of one's own."""
        return bool(self.model and (self.openai_api_key or self.openai_base_url))


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment. Unset and empty variables mean the defaults.

    Raises WrongUse for a home that no path can be made of, and for a number that is none; whether the path can be
    used shows when it is.
    """
    env = os.environ if environment is None else environment
    names = [field.alias for field in Settings.model_fields.values() if field.alias]
    given = {name: env[name] for name in names if env.get(name)}
    home = _home(given.get("INFRA_AGENT_HOME"), env.get("XDG_DATA_HOME"))
    given["INFRA_AGENT_HOME"] = str(home)
    given.setdefault("INFRA_AGENT_DATABASE_URL", f"sqlite:///{quote(str(home / 'infra-agent.db'))}")
    try:
        return Settings.model_validate(given)
    except ValidationError as error:
        said = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors(include_url=False, include_input=False))
        raise WrongUse(f"{said}. Mend or unset it.") from error


def _home(given: str | None, data_home: str | None) -> Path:
    try:
        base = given or Path(data_home or Path.home() / ".local" / "share") / "infra-agent"
        return Path(base).expanduser().absolute()
    except RuntimeError as error:
        place = f"INFRA_AGENT_HOME={given}" if given else "there is no home directory for infra-agent's data"
        raise WrongUse(f"{place}: {error} Set INFRA_AGENT_HOME to a directory that you may write to.") from error
    except FileNotFoundError as error:
        raise WrongUse("the current directory does not exist any more; change to another one") from error
