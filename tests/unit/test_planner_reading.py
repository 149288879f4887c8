"""What a planner may read of the target's history: the target's own, up to the campaign's start, nobody's name."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from planning import SPEC, context, make_tree

from infra_agent.planner.forms import ReadHistory
from infra_agent.planner.reading import Reader
from infra_agent.planner.tree import NotReadable

Read = Callable[..., str]


def git(repository: Path, *arguments: str) -> str:
    who = ("-c", "user.name=Ann Author", "-c", "user.email=ann@example.org")
    done = subprocess.run(["git", "-C", str(repository), *who, *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(repository: Path, message: str, files: dict[str, str]) -> str:
    for name, text in files.items():
        path = repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(repository, "add", "-A")
    git(repository, "commit", "-q", "-m", message)
    return git(repository, "rev-parse", "HEAD")


@pytest.fixture
def larger(tmp_path: Path) -> dict[str, str]:
    """A repository in which the target is one directory of several: its commits by a short name."""
    root = tmp_path / "larger"
    root.mkdir()
    git(root, "init", "-q")
    made = {
        "kernel": commit(root, "Fewer copies", {"target/step.c": "copy();\n", "other/plan.md": "SHIP\n"}),
        "other": commit(root, "Payroll", {"other/pay.md": "SALARY\n"}),
        "answers": commit(root, "The answers", {"target/answers.json": "FORTYTWO\n"}),
        "below": commit(root, "More answers", {"target/secret1/deep/x.json": "FORTYTHREE\n"}),
        "start": commit(root, "Unrolled", {"target/step.c": "unrolled();\n"}),
    }
    return made | {"later": commit(root, "Later on", {"target/step.c": "LATER\n"})}


@pytest.fixture
def read(tmp_path: Path, larger: dict[str, str]) -> Read:
    spec = SPEC.model_copy(update={"hidden": ("answers.json", "secret?")})
    source = {"source": tmp_path / "larger" / "target", "source_commit": larger["start"], "spec": spec}
    reader = Reader(context(make_tree(tmp_path)).model_copy(update=source))
    return lambda **given: reader.read_history(ReadHistory(**given))


def test_the_list_has_the_targets_commits_up_to_the_start(read: Read) -> None:
    listed = read()
    assert "Fewer copies" in listed
    assert "Unrolled" in listed
    assert not [word for word in ("Payroll", "nswers", "Later on") if word in listed]


def test_a_commit_shows_only_what_it_did_to_the_target(read: Read, larger: dict[str, str]) -> None:
    shown = read(commit=larger["kernel"])
    assert "Fewer copies" in shown
    assert "+copy();" in shown
    assert "step.c" in shown
    assert not [word for word in ("SHIP", "plan.md", "other", "target/", "Ann", "ann@") if word in shown]


@pytest.mark.parametrize("name", ["other", "answers", "below"])
def test_a_commit_of_other_directories_or_of_hidden_files_shows_nothing(
    read: Read, larger: dict[str, str], name: str
) -> None:
    assert "nothing of it can be shown" in read(commit=larger[name])


def test_a_later_commit_is_refused(read: Read, larger: dict[str, str]) -> None:
    with pytest.raises(NotReadable, match="up to the campaign's start"):
        read(commit=larger["later"])


@pytest.mark.parametrize("path", [":(top)other", ":/other", ":(top,glob)**", ":!nothing", "*"])
def test_a_path_is_a_path_and_no_pattern(read: Read, path: str) -> None:
    assert "no commit touches this" in read(path=path)


def test_a_path_limits_the_list(read: Read) -> None:
    assert "Unrolled" in read(path="step.c")
    with pytest.raises(NotReadable, match="not shown"):
        read(path="answers.json")
