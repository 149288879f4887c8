"""The store between real processes: killed writers, writers at once, locks, a full disk, another user."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from infra_agent.errors import StoreUnavailable, WrongUse
from infra_agent.store import Store, campaign_lock, open_store

ROOT = Path(__file__).parents[2]
PRELUDE = """
import sys
from pathlib import Path
from feedback.observations import Measurement
from infra_agent.domain import *
from infra_agent.errors import InfraAgentError
from infra_agent.store import *

def campaign(id):
    return Campaign(id=id, spec=CampaignSpec(target="t"), target_name="t", target_toml="", source_commit="s",
                    base_commit="b", host_fingerprint="h")

def experiment(number, state=State.RUNNING):
    proposal = Proposal(hypothesis=Hypothesis(claim="c"), change=Change())
    return Experiment(id=f"exp_{number}", campaign_id="cmp_1", number=number, role="change", state=state,
                      proposal=proposal, parent_commit="b")

def samples(count):
    return [Measurement(probe="p", metric="m", value=1.0, arm="baseline", pair=i) for i in range(count)]

where = sys.argv[1]
"""


def python(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A child that runs the program after the prelude."""
    command = [sys.executable, "-W", "error", "-c", PRELUDE + program, *arguments]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=ROOT, text=True)


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db"


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


def check(store: Store) -> None:
    """SQLite finds nothing wrong with the file."""
    with store.transaction() as ledger:
        assert ledger._connection.execute(text("PRAGMA integrity_check")).scalar() == "ok"
        assert ledger._connection.execute(text("PRAGMA foreign_key_check")).all() == []


def test_a_writer_killed_within_a_transaction_leaves_nothing_of_it(store: Store, url: str) -> None:
    program = """
with open_store(where) as store:
    with store.transaction() as ledger:
        ledger.add_campaign(campaign("cmp_1"))
        ledger.add_experiment(experiment(0))
    with store.transaction() as ledger:
        ledger.finish_experiment(experiment(0, State.COMPLETE), samples(100_000))
        ledger.add_event("cmp_1", "finished")
        print("within", flush=True)
        sys.stdin.readline()
"""
    with python(program, url) as child:
        assert line(child) == "within"
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    with store.transaction() as ledger:
        assert ledger.experiment("exp_0").state == "running"
        assert ledger.samples("exp_0") == ()
        assert ledger.events("cmp_1") == ()
    check(store)


def test_a_writer_killed_at_any_moment_leaves_whole_transactions(store: Store, url: str) -> None:
    program = """
with open_store(where) as store:
    with store.transaction() as ledger:
        ledger.add_campaign(campaign("cmp_1"))
    for number in range(10_000):
        with store.transaction() as ledger:
            ledger.add_experiment(experiment(number))
        with store.transaction() as ledger:
            ledger.finish_experiment(experiment(number, State.COMPLETE), samples(50))
            ledger.add_event("cmp_1", "finished", {"number": number})
        print(number, flush=True)
"""
    with python(program, url) as child:
        acknowledged = [int(line(child)) for _ in range(40)]
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    with store.transaction() as ledger:
        experiments = ledger.experiments("cmp_1")
        finished = [e for e in experiments if e.state.is_finished]
        assert [e.number for e in experiments] == list(range(len(experiments)))
        assert {len(ledger.samples(e.id)) for e in finished} == {50}
        assert [event.data["number"] for event in ledger.events("cmp_1")] == [e.number for e in finished]
        assert {e.number for e in finished} >= set(acknowledged)
    check(store)


def test_writers_at_once_lose_nothing(store: Store, url: str) -> None:
    program = """
with open_store(where) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(100):
        with store.transaction() as ledger:
            before = len(ledger.events("cmp_1"))
            ledger.add_event("cmp_1", sys.argv[2], {"number": number, "before": before})
"""
    seed = "with open_store(where) as s, s.transaction() as ledger: ledger.add_campaign(campaign('cmp_1'))"
    assert python(seed, url).communicate() == ("", "")
    writers = [python(program, url, name) for name in ("a", "b", "c")]
    for writer in writers:
        assert line(writer) == "ready"
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        assert writer.communicate(timeout=120) == ("", "")
        assert writer.returncode == 0
    with store.transaction() as ledger:
        events = ledger.events("cmp_1")
    for name in ("a", "b", "c"):
        assert [event.data["number"] for event in events if event.type == name] == list(range(100))
    assert [event.data["before"] for event in events] == list(range(300)), "each saw all those before it"
    check(store)


def test_a_campaign_of_another_process_is_locked_until_it_dies(tmp_path: Path) -> None:
    program = """
with campaign_lock(Path(where), "cmp_1"):
    print("locked", flush=True)
    sys.stdin.readline()
"""
    with python(program, str(tmp_path)) as child:
        assert line(child) == "locked"
        with pytest.raises(WrongUse, match=f"is being run by process {child.pid};"):
            campaign_lock(tmp_path, "cmp_1").__enter__()
        os.kill(child.pid, signal.SIGKILL)
        child.communicate()
    with campaign_lock(tmp_path, "cmp_1"):
        assert (tmp_path / "cmp_1.lock").read_text() == str(os.getpid())


@pytest.fixture
def small_disk() -> Iterator[Path]:
    """A file system of 2 MiB."""
    directory = Path(tempfile.mkdtemp(prefix="small-"))
    mount = shutil.which("mount")
    command = [mount or "mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(directory)]
    if mount is None or os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        directory.rmdir()
        pytest.skip("a file system can't be mounted here")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)
        directory.rmdir()


def test_a_full_disk_says_so_and_the_store_goes_on_once_there_is_room(small_disk: Path) -> None:
    program = """
with open_store(f"sqlite:///{where}/store.db") as store:
    with store.transaction() as ledger:
        ledger.add_campaign(campaign("cmp_1"))
        ledger.add_experiment(experiment(0))
    try:
        with store.transaction() as ledger:
            ledger.finish_experiment(experiment(0, State.COMPLETE), samples(100_000))
    except InfraAgentError as error:
        print(type(error).__name__, error)
"""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(500_000))
    said, failed = python(program, str(small_disk)).communicate(timeout=60)
    assert failed == ""
    assert said.startswith("StoreUnavailable"), said
    assert "full" in said
    filler.unlink()
    with open_store(f"sqlite:///{small_disk}/store.db") as store:
        with store.transaction() as ledger:
            assert ledger.experiment("exp_0").state == "running"
            assert ledger.samples("exp_0") == ()
            ledger.add_event("cmp_1", "resumed")
        check(store)


def test_a_disk_that_is_full_from_the_start_says_so(small_disk: Path) -> None:
    with (small_disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(bytes(4096)):
            pass
    with pytest.raises(StoreUnavailable, match="full"):
        open_store(f"sqlite:///{small_disk}/store.db")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to become another user; the unit tests cover the rest")
def test_a_database_that_cannot_be_written_can_be_read() -> None:
    program = """
import os
with open_store(f"sqlite:///{where}/store.db") as store, store.transaction() as ledger:
    ledger.add_campaign(campaign("cmp_1"))
os.chmod(f"{where}/store.db", 0o644)
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
else:
    os.chmod(f"{where}/store.db", 0o444)
    os.chmod(where, 0o555)
with open_store(f"sqlite:///{where}/store.db") as store:
    with store.transaction(read_only=True) as ledger:
        print([c.id for c in ledger.campaigns()])
    try:
        with store.transaction() as ledger:
            ledger.add_campaign(campaign("cmp_2"))
    except InfraAgentError as error:
        print(type(error).__name__, error)
"""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        said, failed = python(program, directory).communicate(timeout=60)
        Path(directory).chmod(0o755)
    assert failed == ""
    read, refused = said.splitlines()
    assert read == "['cmp_1']"
    assert refused.startswith("StoreUnavailable")
    assert "permission denied; choose a directory that you may write to" in refused


def test_another_users_directory_is_refused() -> None:
    program = """
import os
open_store("sqlite://").close()
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
try:
    open_store(f"sqlite:///{where}/store.db")
except InfraAgentError as error:
    print(type(error).__name__, error)
"""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        said, failed = python(program, directory).communicate(timeout=60)
    assert failed == ""
    assert said.startswith("StoreUnavailable")
    assert "permission denied; choose a directory that you may write to" in said
