"""Settings from the environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from infra_agent.errors import WrongUse
from infra_agent.settings import Settings, load_settings


def test_defaults_follow_the_desktop_convention() -> None:
    settings = load_settings({"XDG_DATA_HOME": "/data"})
    assert settings.home == Path("/data/infra-agent")
    assert settings.database_url == "sqlite:////data/infra-agent/infra-agent.db"
    assert settings.model == settings.openai_api_key == settings.openai_base_url == ""
    assert not settings.has_model


def test_home_of_the_user_is_the_last_resort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load_settings({}).home == Path("/home/somebody/.local/share/infra-agent")


def test_empty_variables_mean_the_defaults() -> None:
    names = [str(field.alias) for field in Settings.model_fields.values()]
    assert load_settings(dict.fromkeys([*names, "XDG_DATA_HOME"], "")) == load_settings({})


def test_home_is_made_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert load_settings({"INFRA_AGENT_HOME": "here"}).home == tmp_path / "here"
    assert load_settings({"INFRA_AGENT_HOME": "~/there"}).home == Path("/home/somebody/there")


def test_a_home_of_nobody_is_wrong_use() -> None:
    with pytest.raises(WrongUse, match=r"INFRA_AGENT_HOME=~nosuchuser/x.*Set INFRA_AGENT_HOME"):
        load_settings({"INFRA_AGENT_HOME": "~nosuchuser/x"})


def test_given_values_win() -> None:
    settings = load_settings(
        {
            "INFRA_AGENT_HOME": "/h",
            "INFRA_AGENT_DATABASE_URL": "postgresql://u:p@db/x",
            "INFRA_AGENT_MODEL": "m",
            "OPENAI_API_KEY": "k",
            "OPENAI_BASE_URL": "http://localhost:1/v1",
            "UNRELATED": "x",
        }
    )
    assert settings.database_url == "postgresql://u:p@db/x"
    assert (settings.model, settings.openai_api_key, settings.openai_base_url) == ("m", "k", "http://localhost:1/v1")


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"INFRA_AGENT_MODEL": "m"}, False),
        ({"OPENAI_API_KEY": "k"}, False),
        ({"INFRA_AGENT_MODEL": "m", "OPENAI_API_KEY": "k"}, True),
        ({"INFRA_AGENT_MODEL": "m", "OPENAI_BASE_URL": "http://localhost"}, True),
    ],
)
def test_model_needs_a_name_and_somewhere_to_ask(environment: dict[str, str], expected: bool) -> None:
    assert load_settings(environment).has_model is expected


def test_secrets_are_not_shown() -> None:
    settings = load_settings({"OPENAI_API_KEY": "sekret1", "INFRA_AGENT_DATABASE_URL": "postgresql://u:sekret2@db/x"})
    assert "sekret" not in repr(settings)
    assert "sekret" not in str(settings)


def test_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRA_AGENT_MODEL", "from-outside")
    assert load_settings().model == "from-outside"


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        load_settings({}).model = "x"  # type: ignore[misc]
