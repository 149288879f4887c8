"""`infra-agent init`: the template is valid, explains every section, and never destroys a file."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from infra_agent.errors import WrongUse
from infra_agent.scaffold import as_text, init, target_name, template
from infra_agent.target import TargetSpec, load_target, parse_target
from sandboxes.contention import Limit
from sandboxes.sandbox import Limits

COMMENTED = re.compile(r"^# (?=\[|[a-z_0-9A-Z]+ = )")


def everything() -> str:
    """The template with its commented examples in force, and the objective measured by one of them: all
    guardrails are measured by the objective's probe."""
    text = template().replace("@NAME@", "t").replace('probe = "microbench"', 'probe = "load"')
    text = text.replace('editable = ["src"]', 'editable = ["src", "launch.toml"]')
    return "\n".join(COMMENTED.sub("", line) for line in text.splitlines())


def test_what_init_writes_can_be_loaded(tmp_path: Path) -> None:
    said = as_text(init(tmp_path))
    spec, text = load_target(tmp_path)
    assert spec.objective.probe == "microbench"
    assert "<-" in text
    assert f"infra-agent run {tmp_path}" in said
    assert [p.name for p in tmp_path.iterdir()] == ["target.toml"]


def test_commands_to_type_are_quoted(tmp_path: Path) -> None:
    directory = tmp_path / "my engine"
    directory.mkdir()
    assert init(directory).commands[1] == f"infra-agent run '{directory}'"


def test_every_commented_example_is_valid_too() -> None:
    spec = parse_target(everything(), "template")
    assert {p.method for p in spec.probes} == {
        "command", "slices", "outputs", "callgrind", "load", "logprobs", "events"
    }  # fmt: skip
    assert spec.server is not None
    assert spec.knobs
    assert spec.controls
    assert spec.moves
    assert spec.packages
    assert spec.guardrails


def test_every_section_of_target_toml_is_in_the_template() -> None:
    known = {field.alias or name for name, field in TargetSpec.model_fields.items()}
    assert known - set(tomllib.loads(everything())) == set()


def test_the_template_states_the_default_limits() -> None:
    spec = parse_target(everything(), "template")
    assert spec.limits.model_dump() == Limits().model_dump()
    assert spec.contention == Limit()


def test_an_existing_target_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "target.toml"
    path.write_text("mine")
    with pytest.raises(WrongUse, match="--force"):
        init(tmp_path)
    assert path.read_text() == "mine"
    init(tmp_path, force=True)
    assert "schema = 1" in path.read_text()


@pytest.mark.parametrize("missing", ["nowhere", "file"])
def test_the_path_must_be_a_directory(tmp_path: Path, missing: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WrongUse, match="not a directory"):
        init(tmp_path / missing)


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "target.toml").mkdir()
    with pytest.raises(WrongUse, match="can't be written"):
        init(tmp_path, force=True)
    assert [p.name for p in tmp_path.iterdir()] == ["target.toml"]


def test_tell_tale_files_give_hints(tmp_path: Path) -> None:
    (tmp_path / "Makefile").touch()
    (tmp_path / "model.gguf").touch()
    said = as_text(init(tmp_path))
    assert "a Makefile is here" in said
    assert "GGUF" in said
    assert "CMake" not in said


@pytest.mark.parametrize(
    ("directory", "name"), [("my-engine", "my-engine"), ("über engine.v2", "ber-engine-v2"), ("___", "target")]
)
def test_the_name_is_made_of_the_directorys(tmp_path: Path, directory: str, name: str) -> None:
    path = tmp_path / directory
    path.mkdir()
    assert target_name(path) == name
    init(path)
    assert load_target(path)[0].name == name
