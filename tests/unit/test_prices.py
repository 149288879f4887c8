"""Price tables: the shipped one, a user's own, models on this machine."""

from __future__ import annotations

import os
from decimal import Decimal
from itertools import combinations
from pathlib import Path

import pytest

from infra_agent.errors import WrongUse
from infra_agent.planner.prices import FREE, SHIPPED, find_price, is_loopback, read_prices
from infra_agent.settings import Settings, load_settings


def settings(model: str, url: str = "", table: Path | None = None) -> Settings:
    variables = {"INFRA_AGENT_HOME": "/nowhere", "INFRA_AGENT_MODEL": model, "OPENAI_API_KEY": "k"}
    variables |= {"OPENAI_BASE_URL": url} if url else {}
    return load_settings(variables | ({"INFRA_AGENT_PRICES": str(table)} if table else {}))


OPENROUTER = "https://openrouter.ai/api/v1"
KNOWN = [
    ("gpt-5", "", (1.25, 0.125, 10)),
    ("GPT-5", "https://api.openai.com/v1", (1.25, 0.125, 10)),
    ("gpt-5-2025-08-07", "", (1.25, 0.125, 10)),
    ("gpt-5-mini", "", (0.25, 0.025, 2)),
    ("claude-sonnet-4-5-20250929", "https://api.anthropic.com/v1/", (3, 0.3, 15)),
    ("glm-4.6", "https://api.z.ai/api/paas/v4", (0.6, 0.11, 2.2)),
    ("deepseek-chat", "https://api.deepseek.com", (0.28, 0.028, 0.42)),
    ("qwen3-coder-plus", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1", (1.8, 1.8, 9)),
    ("anthropic/claude-opus-4.5", OPENROUTER, (5, 0.5, 25)),
    ("meta-llama/llama-3.3-70b-instruct", OPENROUTER, (0.9, 0.9, 1.2)),
]


@pytest.mark.parametrize(("model", "url", "per_million"), KNOWN)
def test_shipped_prices_are_found(model: str, url: str, per_million: tuple[float, float, float]) -> None:
    price = find_price(settings(model, url))
    assert price is not None
    fresh, cached, answer = (Decimal(str(dollars)) for dollars in per_million)
    assert price.cost(1_000_000, 0, 0) == fresh * 10**9
    assert price.cost(1_000_000, 1_000_000, 0) == cached * 10**9
    assert price.cost(0, 0, 1_000_000) == answer * 10**9


@pytest.mark.parametrize(
    ("model", "url"),
    [
        ("gpt-5-pro-max", ""),
        ("gpt-5-mini", "https://gateway.example/v1"),  # whoever that is may ask for more
        ("glm-4.6", OPENROUTER),
        ("deepseek-chat", "https://api.deepseek.com.evil.example/v1"),
        ("m", "http://10.0.0.7:8000/v1"),
        ("m", "http://[::ffff:10.0.0.7]/v1"),
        ("m", "not a url"),
        ("m", "http://["),
    ],
)
def test_what_no_table_has_is_unknown(model: str, url: str) -> None:
    assert find_price(settings(model, url)) is None


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "127.3.2.1", "model.localhost"])
def test_a_model_on_this_machine_is_free(host: str) -> None:
    assert find_price(settings("anything", f"http://{host}:8080/v1")) is FREE
    assert FREE.cost(10**9, 0, 10**9) == 0
    assert FREE.completion_tokens(0) is None


@pytest.mark.parametrize("host", ["", "localhost.example.com", "127.0.0.1.example.com", "0.0.0.0", "128.0.0.1"])
def test_other_hosts_are_not_this_machine(host: str) -> None:
    assert not is_loopback(host)


def test_a_users_table_wins_over_all(tmp_path: Path) -> None:
    table = tmp_path / "p.toml"
    table.write_text(
        '[[models]]\nmatch = ["paid-*"]\nendpoint = "localhost"\ninput = 3\noutput = 4.5\n'
        '[[models]]\nmatch = ["gpt-5"]\ninput = 0.5\ncached_input = 0.05\noutput = 1\n'
        '[[models]]\nmatch = ["*"]\nendpoint = "10.0.0.?"\ninput = 0\noutput = 0\n'
    )
    gateway = find_price(settings("paid-model", "http://localhost:4000/v1", table))
    assert gateway is not None
    assert (gateway.input, gateway.output) == (3, Decimal("4.5"))
    assert gateway.cost(10, 10, 0) == 30_000  # nothing is known of its cache
    mine = find_price(settings("gpt-5", table=table))
    assert mine is not None
    assert mine.input == Decimal("0.5")
    own = find_price(settings("m", "http://10.0.0.7/v1", table))
    assert own is not None
    assert own.cost(10**6, 0, 10**6) == 0
    assert find_price(settings("gpt-5-mini", table=table)) == find_price(settings("gpt-5-mini"))
    assert find_price(settings("other", "http://localhost:4000/v1", table)) is FREE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[models]]\nmatch = ", "not valid TOML"),
        ('[[models]]\nmatch = ["m"]\ninput = 1\n', "models.0.output: Field required"),
        ('[[models]]\nmatch = ["m"]\ninput = -1\noutput = 1\n', "models.0.input"),
        ('[[models]]\nmatch = ["m"]\ninput = nan\noutput = 1\n', "models.0.input"),
        ("[[models]]\nmatch = []\ninput = 1\noutput = 1\n", "models.0.match"),
        ('[[models]]\nmatch = "m"\ninput = 1\noutput = 1\n', "models.0.match"),
        ('[[models]]\nmatch = ["m"]\ninput = 1\noutput = 1\nprice = 3\n', "models.0.price"),
        ("models = 3\n", "models"),
        ("", "models: Field required"),
    ],
)
def test_a_table_that_cannot_be_used_is_wrong_use(text: str, said: str, tmp_path: Path) -> None:
    table = tmp_path / "p.toml"
    table.write_text(text)
    with pytest.raises(WrongUse) as refused:
        find_price(settings("m", table=table))
    assert str(table) in str(refused.value)
    assert said in str(refused.value)


@pytest.mark.parametrize("name", ["none.toml", ".", "bytes.toml", "pipe", "~nosuchuser/prices.toml"])
def test_a_table_that_cannot_be_read_is_wrong_use(name: str, tmp_path: Path) -> None:
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(WrongUse, match="INFRA_AGENT_PRICES"):
        find_price(settings("m", table=Path(name) if name.startswith("~") else tmp_path / name))


def test_no_shipped_entry_hides_another() -> None:
    """Whatever a name is listed for, it is found under it: no pattern of an earlier entry takes it away."""
    table = read_prices(SHIPPED)
    assert table.as_of is not None
    for earlier, later in combinations(table.models, 2):
        for name in later.match:
            assert not earlier.fits(name.replace("?", "1"), later.endpoint), (name, earlier.match)
    for price in table.models:
        assert price.endpoint != "*"  # elsewhere the same name may cost more
        assert price.cached_input is None or price.cached_input <= price.input <= max(price.output, price.input)
