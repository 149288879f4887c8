"""Ids, kept contents of artefacts, and the lock of a campaign."""

from __future__ import annotations

import errno
import hashlib
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from infra_agent.errors import NotFound, PlatformFailed, StoreUnavailable, WrongUse
from infra_agent.store import ArtefactFiles, artefacts as artefacts_module, campaign_lock, ids, is_locked, new_id
from infra_agent.store.locks import waiting_lock
from sandboxes.results import Artefact


@pytest.fixture
def files(tmp_path: Path) -> ArtefactFiles:
    return ArtefactFiles(tmp_path / "artefacts")


def kept(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "artefacts").rglob("*") if path.is_file()]


def test_ids_say_what_they_name_and_sort_by_creation() -> None:
    made = [new_id("cmp") for _ in range(5000)]
    assert made == sorted(made)
    assert len(set(made)) == len(made)
    assert all(len(id) == 20 and id.startswith("cmp_") for id in made)


def test_ids_keep_their_order_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = new_id("exp")
    monkeypatch.setattr(ids, "time", SimpleNamespace(time_ns=lambda: 0))
    after = [new_id("exp") for _ in range(3)]
    assert [before, *after] == sorted({before, *after})


def test_ids_of_threads_differ() -> None:
    made: list[str] = []
    threads = [threading.Thread(target=lambda: made.extend([new_id("exp") for _ in range(500)])) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 2000


def test_added_content_is_read_back_and_verified(files: ArtefactFiles, tmp_path: Path) -> None:
    source = tmp_path / "profile.bin"
    source.write_bytes(os.urandom(3_000_000))
    sha256 = files.add(source)
    assert sha256 == hashlib.sha256(source.read_bytes()).hexdigest()
    with files.open(sha256) as file:
        assert file.read() == source.read_bytes()
    assert files.verify(sha256)


def test_the_same_content_is_kept_once(files: ArtefactFiles, tmp_path: Path) -> None:
    for name in ("a.txt", "b.txt"):
        (tmp_path / name).write_text("same")
        sha256 = files.add(tmp_path / name)
    assert kept(tmp_path) == [sha256]


def test_changed_content_does_not_verify(files: ArtefactFiles, tmp_path: Path) -> None:
    (tmp_path / "a").write_text("right")
    sha256 = files.add(tmp_path / "a")
    (tmp_path / "artefacts" / sha256[:2] / sha256).write_text("wrong")
    assert not files.verify(sha256)


@pytest.mark.parametrize("sha256", ["0" * 64, "../../etc/passwd", "", "A" * 64])
def test_content_that_is_not_kept_is_not_found(files: ArtefactFiles, sha256: str) -> None:
    with pytest.raises(NotFound):
        files.open(sha256)
    with pytest.raises(NotFound):
        files.verify(sha256)


def test_links_pipes_and_directories_are_refused(files: ArtefactFiles, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "directory").mkdir()
    for name in ("link", "pipe", "directory"):
        with pytest.raises(PlatformFailed, match="is not a regular file"):
            files.add(tmp_path / name)
    with pytest.raises(StoreUnavailable):
        files.add(tmp_path / "absent")


def test_a_full_disk_says_so_and_leaves_nothing_half(
    files: ArtefactFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a").write_text("x")
    fake = SimpleNamespace(**{name: getattr(os, name) for name in dir(os) if not name.startswith("__")})
    fake.fsync = full
    monkeypatch.setattr(artefacts_module, "os", fake)
    with pytest.raises(StoreUnavailable, match="the disk is full; free some space"):
        files.add(tmp_path / "a")
    assert kept(tmp_path) == []


@pytest.mark.parametrize(
    ("name", "content", "media_type"),
    [
        ("slices.json", b'{"a": 1}', "application/json"),
        ("engine.log", "naïve\n".encode(), "text/plain"),
        ("cut.log", b"x" * 8191 + "ï".encode(), "text/plain"),
        ("trace.bin", b"\x00\x01\x02", "application/octet-stream"),
        ("latin.txt", b"\xff\xfe and more than a few letters", "application/octet-stream"),
        ("fake.json", b"\xff" * 100, "application/octet-stream"),
    ],
)
def test_kept_artefact_is_described(
    files: ArtefactFiles, tmp_path: Path, name: str, content: bytes, media_type: str
) -> None:
    (tmp_path / name).write_bytes(content)
    artefact = Artefact(path=name, format="text", probe="load", arm="candidate", stage="confirm")
    stored = files.keep(tmp_path, artefact)
    assert stored.media_type == media_type
    assert stored.size_bytes == len(content)
    assert stored.sha256 == hashlib.sha256(content).hexdigest()
    assert Artefact(**stored.model_dump(include=set(Artefact.model_fields))) == artefact


def test_an_artefact_outside_its_run_is_refused(files: ArtefactFiles, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (tmp_path / "secret").write_text("s")
    (run / "up").symlink_to(tmp_path)
    for path in ("../secret", "up/secret", str(tmp_path / "secret")):
        with pytest.raises(PlatformFailed, match="leads out of"):
            files.keep(run, Artefact(path=path, format="text", probe="load"))


def test_a_campaign_is_locked_for_others_until_its_run_ends(tmp_path: Path) -> None:
    with campaign_lock(tmp_path / "locks", "cmp_1"):
        with pytest.raises(WrongUse, match=rf"cmp_1 is being run by process {os.getpid()}; wait"):
            campaign_lock(tmp_path / "locks", "cmp_1").__enter__()
        with campaign_lock(tmp_path / "locks", "cmp_2"):
            pass
    with campaign_lock(tmp_path / "locks", "cmp_1"):
        pass


def test_whether_a_campaign_is_locked_can_be_asked_without_taking_the_lock(tmp_path: Path) -> None:
    assert not is_locked(tmp_path / "locks", "cmp_1")
    assert not (tmp_path / "locks").exists()
    with campaign_lock(tmp_path / "locks", "cmp_1"):
        assert is_locked(tmp_path / "locks", "cmp_1")
    assert not is_locked(tmp_path / "locks", "cmp_1")


def test_a_lock_that_cannot_be_made_names_its_path(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable, match=r"file/cmp_1\.lock: .*choose another path"):
        campaign_lock(tmp_path / "file", "cmp_1").__enter__()


def test_a_lock_that_stays_held_ends_the_wait(tmp_path: Path) -> None:
    path = tmp_path / "store.lock"
    with waiting_lock(path, timeout_s=1), pytest.raises(StoreUnavailable, match="wait for it or end it"):
        waiting_lock(path, timeout_s=0.1).__enter__()
