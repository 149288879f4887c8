"""Temporary files of a run: below one directory, and found again after a kill."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra_agent.errors import PlatformFailed
from infra_agent.leftovers import NOTE, temporary_files
from sandboxes.bubblewrap import probe_host
from sandboxes.confinement import find_tools


@pytest.fixture(autouse=True)
def tmpdir_of_the_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "tmp"
    directory.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    directory = tmp_path / "cmp_1"
    directory.mkdir()
    return directory


def test_all_temporary_files_lie_below_the_noted_place_and_go_with_it(campaign: Path, tmpdir_of_the_test: Path) -> None:
    with temporary_files(campaign) as place:
        assert (campaign / NOTE).readlink() == place
        with tempfile.TemporaryDirectory(prefix="ia-") as inner:
            assert Path(inner).parent == place
        (place / "forgotten").write_text("x")
        assert place.stat().st_mode & 0o777 == 0o755
    assert list(tmpdir_of_the_test.iterdir()) == list(campaign.iterdir()) == []
    assert tempfile.gettempdir() == str(tmpdir_of_the_test)


def test_what_a_killed_run_left_is_removed_by_the_next_one(campaign: Path, tmpdir_of_the_test: Path) -> None:
    program = (
        "import os, sys, tempfile; from pathlib import Path; from infra_agent.leftovers import temporary_files\n"
        "with temporary_files(Path(sys.argv[1])):\n"
        "    Path(tempfile.mkdtemp(), 'tree').mkdir()\n"
        "    os.kill(os.getpid(), 9)"
    )
    environment = os.environ | {"TMPDIR": str(tmpdir_of_the_test)}
    subprocess.run([sys.executable, "-c", program, str(campaign)], env=environment, check=False)
    (left,) = tmpdir_of_the_test.iterdir()
    assert list(left.glob("*/tree"))
    with temporary_files(campaign) as place:
        assert list(tmpdir_of_the_test.iterdir()) == [place] != [left]


@pytest.mark.skipif(not probe_host().available, reason="this host refuses a sandbox")
def test_a_sandbox_that_outlived_its_run_is_ended_by_the_next_one(campaign: Path, tmpdir_of_the_test: Path) -> None:
    places = [tmpdir_of_the_test / name for name in ("ia-0badc0de", "ia-12345678")]
    with contextlib.ExitStack() as stack:
        mine, another = [stack.enter_context(sandbox_below(place)) for place in places]
        (campaign / NOTE).symlink_to(places[0])
        with temporary_files(campaign):
            assert mine.wait(timeout=30) == 128 + signal.SIGKILL
            assert not places[0].exists()
            assert another.poll() is None


@contextlib.contextmanager
def sandbox_below(place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process whose /tree is mounted from below `place`, as one that a kill has orphaned."""
    tree = place / "ia-inner" / "candidate"
    tree.mkdir(parents=True)
    command = [
        "--unshare-user",
        "--unshare-pid",
        "--ro-bind",
        "/",
        "/",
        "--bind",
        str(tree),
        "/mnt",
        "--as-pid-1",
        "--die-with-parent",
    ]
    says = "echo ready; exec sleep 600"
    with subprocess.Popen(
        [str(find_tools().bwrap), *command, "sh", "-c", says], stdout=subprocess.PIPE, start_new_session=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a directory of another user")
def test_a_place_that_is_another_users_by_now_is_left_alone(campaign: Path, tmpdir_of_the_test: Path) -> None:
    theirs = tmpdir_of_the_test / "ia-00000000"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    (campaign / NOTE).symlink_to(theirs)
    with temporary_files(campaign):
        assert theirs.is_dir()


def test_a_missing_temporary_directory_says_what_to_do(campaign: Path, tmpdir_of_the_test: Path) -> None:
    tmpdir_of_the_test.rmdir()
    with pytest.raises(PlatformFailed, match="set TMPDIR to a writable directory"):
        temporary_files(campaign).__enter__()
