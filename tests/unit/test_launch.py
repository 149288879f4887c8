"""The launch file: values are read, and a change is the smallest diff that a person would make."""

from __future__ import annotations

import difflib
import itertools
import os
import tomllib
from pathlib import Path

import pytest

from feedback.observations import Scalar
from infra_agent.errors import TargetInvalid
from infra_agent.launch import read_knobs, rewrite
from infra_agent.target import TargetSpec

TEXT = """\
# Inherited from the old host.
mask = 0x10  # cores

[threads]
decode = 8          # half of them
batch = 16   # all of them

[cache]
kind = "f16"
reuse = false
"""

KEYS = {
    "mask": "mask",
    "decode": "threads.decode",
    "batch": "threads.batch",
    "kind": "cache.kind",
    "reuse": "cache.reuse",
    "plain": "plain",
    "slots": "server.slots.count",
}


def make_spec(keys: dict[str, str], path: str = "launch.toml") -> TargetSpec:
    return TargetSpec.model_validate(
        {
            "schema": 1,
            "name": "example",
            "description": "",
            "editable": ["*"],
            "objective": {"metric": "slice_time_s", "direction": "minimize", "probe": "p"},
            "launch_file": {"path": path},
            "knobs": [{"name": n, "description": "", "key": k, "choices": [1, 2]} for n, k in keys.items()],
            "probes": [{"name": "p", "kind": "microbench", "method": "slices", "worker": ["true"]}],
        }
    )


SPEC = make_spec(KEYS)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "launch.toml").write_text(TEXT)
    return tmp_path


def changed_lines(tree: Path) -> list[str]:
    diff = difflib.ndiff(TEXT.splitlines(), (tree / "launch.toml").read_text().splitlines())
    return [line for line in diff if line[0] in "+-"]


def test_values_are_read_and_absent_knobs_are_none(tree: Path) -> None:
    assert read_knobs(tree, SPEC) == {
        "mask": 16, "decode": 8, "batch": 16, "kind": "f16", "reuse": False, "plain": None, "slots": None,
    }  # fmt: skip


def test_a_target_without_knobs_needs_no_launch_file(tmp_path: Path) -> None:
    spec = SPEC.model_copy(update={"knobs": (), "launch_file": None})
    assert read_knobs(tmp_path, spec) == {}
    rewrite(tmp_path, spec, {})


@pytest.mark.parametrize(
    ("knobs", "expected"),
    [
        ({"decode": 2}, ["- decode = 8          # half of them", "+ decode = 2          # half of them"]),
        ({"kind": "q8_0"}, ['- kind = "f16"', '+ kind = "q8_0"']),
        ({"reuse": True}, ["- reuse = false", "+ reuse = true"]),
        ({"reuse": None}, ["- reuse = false"]),
        ({"plain": 1.5}, ["+ plain = 1.5"]),
        ({"slots": 4}, ["+ ", "+ [server.slots]", "+ count = 4"]),
        ({"mask": 16, "batch": 16, "slots": None}, []),
    ],
)
def test_a_change_is_a_minimal_diff(tree: Path, knobs: dict[str, Scalar | None], expected: list[str]) -> None:
    rewrite(tree, SPEC, knobs)
    assert changed_lines(tree) == expected


def test_a_same_valued_knob_keeps_its_spelling(tree: Path) -> None:
    rewrite(tree, SPEC, {"mask": 16, "decode": 4})
    assert "mask = 0x10  # cores" in (tree / "launch.toml").read_text()


def test_doing_it_twice_changes_nothing_and_there_and_back_restores_the_text(tree: Path) -> None:
    rewrite(tree, SPEC, {"decode": 2, "kind": "q8_0"})
    once = (tree / "launch.toml").read_bytes()
    rewrite(tree, SPEC, {"decode": 2, "kind": "q8_0"})
    assert (tree / "launch.toml").read_bytes() == once
    rewrite(tree, SPEC, {"decode": 8, "kind": "f16"})
    assert (tree / "launch.toml").read_text() == TEXT


def test_true_is_not_one(tree: Path) -> None:
    rewrite(tree, SPEC, {"plain": 1})
    rewrite(tree, SPEC, {"plain": True})
    assert read_knobs(tree, SPEC)["plain"] is True


LAYOUTS = {
    "empty": "",
    "only a comment": "# nothing yet",
    "no newline at the end": '[cache]\nkind = "f16"',
    "dotted keys": "threads.decode = 8\nthreads.batch = 16\n",
    "inline table": "threads = { decode = 8, batch = 16 }\n",
    "sub-table only": "[server.slots]\ncount = 1\n\n[threads]\ndecode = 1\n",
    "out of order": "[threads]\ndecode = 8\n\n[server]\nname = 'x'\n\n[server.slots]\ncount = 2\n",
    "windows line ends": "[threads]\r\ndecode = 8 # half\r\n\r\n[cache]\r\nreuse = true\r\n",
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout_says_what_was_asked_and_keeps_the_rest(tmp_path: Path, layout: str) -> None:
    values: list[dict[str, Scalar | None]] = [
        {"decode": 3}, {"batch": 5}, {"slots": 7}, {"plain": "a \"quoted\"\n\x07 text"}, {"kind": "q8_0"},
        {"decode": None}, {"slots": None}, {"reuse": False},
    ]  # fmt: skip
    for change in (*values, *({**a, **b} for a, b in itertools.combinations(values, 2))):
        (tmp_path / "launch.toml").write_bytes(LAYOUTS[layout].encode())
        before = read_knobs(tmp_path, SPEC)
        rewrite(tmp_path, SPEC, change)
        assert read_knobs(tmp_path, SPEC) == {**before, **change}
        tomllib.loads((tmp_path / "launch.toml").read_bytes().decode())


@pytest.mark.parametrize(
    ("value", "reason"),
    [(float("nan"), "finite"), (float("inf"), "finite"), (2**63, "64 bits"), ("\udc80", "valid text")],
)
def test_a_value_that_toml_cannot_hold_is_refused(tree: Path, value: Scalar, reason: str) -> None:
    with pytest.raises(TargetInvalid, match=reason):
        rewrite(tree, SPEC, {"decode": 2, "plain": value})
    assert changed_lines(tree) == []


def test_an_unknown_knob_is_refused_and_nothing_is_written(tree: Path) -> None:
    with pytest.raises(TargetInvalid, match="unknown knob 'thread'; known are: mask"):
        rewrite(tree, SPEC, {"decode": 2, "thread": 4})
    assert changed_lines(tree) == []


def test_malformed_toml_names_the_line(tree: Path) -> None:
    (tree / "launch.toml").write_text("a = 1\nb = = 2\n")
    with pytest.raises(TargetInvalid, match=r"launch\.toml:2: not valid TOML"):
        read_knobs(tree, SPEC)


@pytest.mark.parametrize("text", ["threads = 8\n", "[[threads]]\ndecode = 8\n", "[threads]\ndecode = [8]\n"])
def test_a_shape_that_does_not_fit_the_key_is_refused(tree: Path, text: str) -> None:
    (tree / "launch.toml").write_text(text)
    with pytest.raises(TargetInvalid, match="threads"):
        read_knobs(tree, SPEC)
    with pytest.raises(TargetInvalid, match="threads"):
        rewrite(tree, SPEC, {"decode": 2})
    assert (tree / "launch.toml").read_text() == text


def test_bytes_that_are_not_text_are_refused(tree: Path) -> None:
    (tree / "launch.toml").write_bytes(b"a = '\xff'\n")
    with pytest.raises(TargetInvalid, match="can't be read"):
        read_knobs(tree, SPEC)


@pytest.mark.parametrize("path", [".", "absent.toml", "folder"])
def test_a_path_that_is_no_file_of_the_target_is_refused(tree: Path, path: str) -> None:
    (tree / "folder").mkdir()
    (tree.parent / "launch.toml").write_text("decode = 1\n")
    with pytest.raises(TargetInvalid, match="launch_file"):
        rewrite(tree, make_spec({"decode": "decode"}, path), {"decode": 2})


@pytest.mark.parametrize("path", ["link.toml", "away/launch.toml"])
def test_a_symbolic_link_is_never_followed(tmp_path: Path, path: str) -> None:
    outside, tree = tmp_path / "outside", tmp_path / "tree"
    outside.mkdir()
    tree.mkdir()
    (outside / "launch.toml").write_text("decode = 1\n")
    (tree / "link.toml").symlink_to(outside / "launch.toml")
    (tree / "away").symlink_to(outside)
    spec = make_spec({"decode": "decode"}, path)
    with pytest.raises(TargetInvalid, match="symbolic link"):
        rewrite(tree, spec, {"decode": 2})
    with pytest.raises(TargetInvalid, match="symbolic link"):
        read_knobs(tree, spec)
    assert (outside / "launch.toml").read_text() == "decode = 1\n"


def test_mode_is_kept_and_a_hard_link_elsewhere_is_not_written(tree: Path) -> None:
    (tree / "launch.toml").chmod(0o640)
    os.link(tree / "launch.toml", tree / "elsewhere.toml")
    rewrite(tree, SPEC, {"decode": 2})
    assert (tree / "launch.toml").stat().st_mode & 0o777 == 0o640
    assert (tree / "elsewhere.toml").read_text() == TEXT
    assert sorted(p.name for p in tree.iterdir()) == ["elsewhere.toml", "launch.toml"]
