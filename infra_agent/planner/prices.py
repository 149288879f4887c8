"""What a model costs: the first entry of a price table that fits its name and endpoint. The table is data.

The user's table (INFRA_AGENT_PRICES) comes first, then models on this machine, which are free, then the shipped one.
"""

from __future__ import annotations

import json
import math
import tomllib
from datetime import date
from decimal import Decimal
from fnmatch import fnmatchcase
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, ValidationError

from infra_agent.domain import NANODOLLARS
from infra_agent.errors import WrongUse
from infra_agent.settings import Settings
from sandboxes.files import open_regular
from sandboxes.results import Record

MAX_BYTES = 1 << 20
SHIPPED = Path(__file__).with_name("prices.toml")
_PER_TOKEN = NANODOLLARS // 1_000_000
"""From dollars per million tokens to nanodollars per token."""
_OPENAI = "api.openai.com"
"""Where the `openai` package goes when no endpoint is set."""

Dollars = Annotated[Decimal, Field(ge=0, le=100_000, allow_inf_nan=False)]


class Price(Record):
    """One entry: US dollars per million tokens."""

    match: tuple[Annotated[str, Field(min_length=1)], ...] = Field(min_length=1)
    """Names of models, or patterns with * and ?."""
    endpoint: str = "*"
    """Host of the endpoint, or a pattern."""
    input: Dollars
    cached_input: Dollars | None = None
    """Of prompt tokens that the endpoint had cached; None: as any other."""
    output: Dollars
    window_tokens: int | None = Field(default=None, ge=1)
    """Prompt and answer together; what an answer without a limit may fill."""

    def fits(self, model: str, host: str) -> bool:
        """Whether the entry is that of this model at this host."""
        names = any(fnmatchcase(model.lower(), pattern.lower()) for pattern in self.match)
        return names and fnmatchcase(host.lower(), self.endpoint.lower())

    def cost(self, prompt_tokens: int, cached_tokens: int, completion_tokens: int) -> int:
        """Nanodollars of one call, rounded up; `cached_tokens` are those of the prompt that were cached."""
        cached = self.input if self.cached_input is None else self.cached_input
        dollars = (
            (prompt_tokens - cached_tokens) * self.input + cached_tokens * cached + completion_tokens * self.output
        )
        return math.ceil(dollars * _PER_TOKEN)

    def completion_tokens(self, nanodollars: int) -> int | None:
        """How many tokens of an answer so much pays for; None: any number."""
        return math.floor(nanodollars / (self.output * _PER_TOKEN)) if self.output else None


FREE = Price(match=("*",), input=Decimal(0), output=Decimal(0))
"""Of a model on this machine."""


class PriceTable(Record):
    """A price file."""

    as_of: date | None = None
    models: tuple[Price, ...]


def find_price(settings: Settings) -> Price | None:
    """The price of the settings' model, or None if no table has it. Raises WrongUse for a table that can't be used."""
    own = read_prices(Path(settings.prices)).models if settings.prices else ()
    host = _host(settings.openai_base_url)
    local = (FREE,) if is_loopback(host) else ()
    for price in own:
        if price.fits(settings.model, host):
            return price
    return next((p for p in (*local, *read_prices(SHIPPED).models) if p.fits(settings.model, host)), None)


def read_prices(path: Path) -> PriceTable:
    """A price table. Raises WrongUse naming the file and what is wrong with it."""
    try:
        with open_regular(path.expanduser(), follow_link=True) as file:
            text = file.read(MAX_BYTES).decode("utf-8")
        return PriceTable.model_validate(tomllib.loads(text, parse_float=Decimal))
    except (OSError, RuntimeError, UnicodeDecodeError) as error:
        raise WrongUse(f"the price table {path} can't be read: {error}; mend or unset INFRA_AGENT_PRICES") from error
    except tomllib.TOMLDecodeError as error:
        raise WrongUse(f"{path}: not valid TOML: {error}") from error
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False)[:5]]
        raise WrongUse(f"{path} is no price table: {'; '.join(problems)}") from error


def unknown_price(settings: Settings) -> WrongUse:
    """What to tell somebody who wants a dollar budget kept for a model that no table has."""
    where = settings.prices or "a file, prices.toml for one, and set INFRA_AGENT_PRICES to its path"
    host = _host(settings.openai_base_url)
    return WrongUse(
        f"a budget in dollars can't be kept: the price of model {settings.model!r} at {host} is not known. "
        f"Add it to {where}, in dollars per million tokens:\n\n[[models]]\n"
        f"match = [{json.dumps(settings.model)}]\nendpoint = {json.dumps(host)}\n"
        "input = 1.0\ncached_input = 0.1\noutput = 4.0\n\nOr give a budget in tokens instead: --tokens N"
    )


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as its name or address says."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _host(base_url: str) -> str:
    try:
        return (urlsplit(base_url).hostname or "") if base_url else _OPENAI
    except ValueError:  # the endpoint itself says what is wrong with its address
        return ""
