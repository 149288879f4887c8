"""The contract that every sandbox must pass, as a class of tests to inherit from.

    class TestMySandbox(SandboxContract):
        @pytest.fixture
        def opener(self):
            return MySandbox

Each test breaks one promise from the inside and looks from the outside whether it held. The breaking is
bounded: on a sandbox that holds nothing, it costs the host a second of work, no more. Needs Linux and a
sandbox in which `python` is this Python.
"""

from __future__ import annotations

import ast
import hashlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxes.results import Ending
from sandboxes.sandbox import Limits, Mount, ProcessFailed, Sandbox, SandboxError, SandboxSpec

Opener = Callable[[SandboxSpec], Sandbox]
MIB = 1 << 20


def python(code: str, *arguments: str) -> list[str]:
    """A command that runs Python code without site packages."""
    return ["python", "-I", "-S", "-c", code, *arguments]


def survivors(marker: str) -> list[str]:
    """Command lines of host processes that contain the marker."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = file.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        if marker in words:
            found.append(words)
    return found


def wait_until(condition: Callable[[], object], timeout_s: float = 5.0) -> bool:
    """Whether the condition became true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


class Factory:
    """Opens sandboxes on directories of one test and closes them at its end."""

    def __init__(self, opener: Opener, directory: Path) -> None:
        self._opener, self._directory = opener, directory
        self.opened: list[Sandbox] = []

    def __call__(self, limits: Limits | None = None, **fields: Any) -> Sandbox:
        """Open one more sandbox; keywords are fields of SandboxSpec."""
        number = len(self.opened)
        tree, scratch = self._directory / f"tree{number}", self._directory / f"scratch{number}"
        tree.mkdir()
        scratch.mkdir()
        spec = SandboxSpec(tree=tree, scratch=scratch, limits=limits or Limits(timeout_s=20.0), **fields)
        sandbox = self._opener(spec)
        self.opened.append(sandbox)
        return sandbox

    def close(self) -> None:
        """Close all of them."""
        for sandbox in self.opened:
            sandbox.close()


class _Fixtures:
    @pytest.fixture
    def opener(self) -> Opener:
        """How to open the sandbox under test: override this."""
        raise NotImplementedError

    @pytest.fixture
    def make(self, opener: Opener, tmp_path: Path, marker: str) -> Iterator[Factory]:
        """Open sandboxes with other limits or mounts. Closed before the marker looks for survivors."""
        factory = Factory(opener, tmp_path)
        yield factory
        factory.close()

    @pytest.fixture
    def sandbox(self, make: Factory) -> Sandbox:
        """A sandbox with generous limits."""
        return make()

    @pytest.fixture
    def marker(self) -> Iterator[str]:
        """A word to recognize a test's processes by. At the end of the test none may be left."""
        word = f"marker-{os.urandom(8).hex()}"
        yield word
        assert survivors(word) == []


class WallContract(_Fixtures):
    """What a command can see and reach."""

    def test_network_is_absent(self, sandbox: Sandbox) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.socket(socket.AF_UNIX) as abstract:
            name = f"sandbox-contract-{os.urandom(8).hex()}"
            abstract.bind("\0" + name)
            abstract.listen()
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port)).close()
            code = (
                "import socket,sys\n"
                "def tell(family, address):\n"
                "    try: socket.socket(family).connect(address); print('reached', address)\n"
                "    except OSError: print('refused')\n"
                "tell(socket.AF_INET, ('127.0.0.1', int(sys.argv[1])))\n"
                "tell(socket.AF_INET, ('1.1.1.1', 53))\n"
                "tell(socket.AF_UNIX, '\\0' + sys.argv[2])\n"
                "print([name for _, name in socket.if_nameindex()])\n"
            )
            result = sandbox.exec(python(code, str(port), name))
        assert result.stdout.split("\n")[:3] == ["refused"] * 3, result
        assert result.stdout.split("\n")[3] == "['lo']"

    def test_host_files_are_out_of_sight(self, sandbox: Sandbox, tmp_path: Path) -> None:
        secret = tmp_path / "secret"
        secret.write_text("a secret")
        secret.chmod(0o644)
        code = "import os,sys\nfor p in sys.argv[1:]: print(os.path.lexists(p))"
        paths = [secret, Path("/etc/shadow"), Path("/etc/machine-id"), Path("/var/log"), Path("/run/systemd")]
        result = sandbox.exec(python(code, *map(str, paths)))
        assert result.stdout.split() == ["False"] * len(paths), result

    def test_home_shows_nothing_but_python(self, sandbox: Sandbox) -> None:
        home = Path.home()
        shown = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent.parent]
        held = home.iterdir() if home.is_dir() else iter(())
        hidden = [path for path in held if not any(prefix.is_relative_to(path) for prefix in shown)]
        code = "import os,sys\nprint(sum(os.path.lexists(p) for p in sys.argv[1:]))"
        assert sandbox.exec(python(code, *map(str, hidden))).stdout == "0\n"

    def test_system_is_read_only(self, make: Factory, tmp_path: Path) -> None:
        (tmp_path / "mounted").mkdir(mode=0o777)
        (tmp_path / "mounted").chmod(0o777)
        (tmp_path / "mounted" / "file").write_text("shown")
        (tmp_path / "mounted" / "file").chmod(0o666)
        sandbox = make(mounts=(Mount(host=tmp_path / "mounted", inside="/models/mounted"),))
        code = (
            "import os,sys\n"
            "print(open('/models/mounted/file').read())\n"
            "for p in sys.argv[1:]:\n"
            "    try: open(p, 'a').close(); print('written', p)\n"
            "    except OSError: print('refused')\n"
        )
        directories = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/proc/sys/kernel", sys.prefix)
        targets = [f"{d}/new" for d in (*directories, "/models/mounted")]
        targets += ["/etc/passwd", "/models/mounted/file", "/proc/sys/kernel/hostname"]
        result = sandbox.exec(python(code, *targets))
        assert result.stdout.split("\n") == ["shown", *["refused"] * len(targets), ""], result
        # Permissions alone are not enough: another user, or files that everybody may write, would get around.
        code = "import os,sys\nfor p in sys.argv[1:]: print(bool(os.statvfs(p).f_flag & os.ST_RDONLY))"
        mounted = ("/", "/usr", "/dev", "/etc/passwd", sys.prefix, sys.base_prefix, "/models/mounted")
        assert sandbox.exec(python(code, *mounted)).stdout == "True\n" * len(mounted)

    def test_tmp_is_private(self, make: Factory) -> None:
        name = f"sandbox-contract-{os.urandom(8).hex()}"
        first, second = make(), make()
        code = "import sys,os,time; open('/tmp/' + sys.argv[1], 'w').close(); print('made', flush=True); input()"
        process = first.start(python(code, name))
        assert process.read_line(10.0) == b"made"
        assert not Path("/tmp", name).exists()
        look = python("import sys,os; print(os.path.exists('/tmp/' + sys.argv[1]))", name)
        assert second.exec(look).stdout == "False\n"

    def test_tree_and_scratch_are_shared(self, sandbox: Sandbox) -> None:
        (sandbox.spec.tree / "given").write_text("from outside")
        code = "open('made','w').write(open('/tree/given').read()); open('/scratch/made','w').write('s')"
        assert sandbox.exec(python(f"import os; assert os.getcwd() == '/tree'; {code}")).ok
        assert (sandbox.spec.tree / "made").read_text() == "from outside"
        assert (sandbox.spec.scratch / "made").read_text() == "s"

    def test_environment_is_an_allow_list(self, make: Factory, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OPENAI_API_KEY", "a secret")
        sandbox = make(env={"FROM_SPEC": "1", "BOTH": "spec"})
        result = sandbox.exec(
            python("import os; print(sorted(os.environ.items()))"), env={"FROM_CALL": "2", "BOTH": "call"}
        )
        assert "a secret" not in result.stdout
        names = {name for name, _ in ast.literal_eval(result.stdout)}
        assert {"PATH", "HOME", "LANG", "FROM_SPEC", "FROM_CALL", "BOTH"} <= names
        assert names <= {"PATH", "HOME", "LANG", "FROM_SPEC", "FROM_CALL", "BOTH", "PWD", "LC_CTYPE"}
        assert "('BOTH', 'call')" in result.stdout
        assert "('HOME', '/tmp')" in result.stdout

    def test_other_processes_cannot_be_seen_or_signalled(self, sandbox: Sandbox) -> None:
        code = (
            "import os,sys\n"
            "print(len([n for n in os.listdir('/proc') if n.isdigit()]) < 6)\n"
            "pid = int(sys.argv[1])\n"
            "try: os.kill(pid, 0); print('reached')\n"
            "except OSError: print('refused')\n"
        )
        # Low pids exist inside as well: ours is used only if it cannot be mistaken.
        pid = os.getpid() if os.getpid() > 100 else 1 << 21
        assert sandbox.exec(python(code, str(pid))).stdout == "True\nrefused\n"

    def test_nobody_inside_is_root_or_privileged(self, sandbox: Sandbox) -> None:
        code = (
            "import os\n"
            "status = dict(l.split(':', 1) for l in open('/proc/self/status') if ':' in l)\n"
            "print(os.getuid(), os.geteuid(), os.getgroups())\n"
            "print({int(status[k], 16) for k in ('CapInh', 'CapPrm', 'CapEff', 'CapBnd', 'CapAmb')})\n"
            "print(int(status['NoNewPrivs']))\n"
        )
        (sandbox.spec.tree / "given").touch()
        identity, capabilities, privileges, _ = sandbox.exec(python(code)).stdout.split("\n")
        assert "0" not in identity.replace("[", " ").replace("]", " ").replace(",", " ").split()
        assert capabilities == "{0}"
        assert privileges == "1"

    def test_no_descriptor_of_ours_is_inherited(self, sandbox: Sandbox) -> None:
        code = (
            "import os\n"
            "held = [int(fd) for fd in os.listdir('/proc/self/fd')]\n"
            "print([fd for fd in held if os.path.exists(f'/proc/self/fd/{fd}')])\n"
        )
        with socket.create_server(("127.0.0.1", 0)) as server:
            os.set_inheritable(server.fileno(), True)
            assert sandbox.exec(python(code)).stdout == "[0, 1, 2]\n"

    def test_new_namespaces_are_refused(self, sandbox: Sandbox) -> None:
        code = (
            "import ctypes\n"
            "libc = ctypes.CDLL(None, use_errno=True)\n"
            "print(libc.unshare(0x10000000), libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))\n"
        )
        assert sandbox.exec(python(code)).stdout == "-1 -1\n"

    def test_python_with_numpy_works(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(
            ["python", "-c", "import numpy; print(int((numpy.ones((64, 64)) @ numpy.ones(64)).sum()))"]
        )
        assert result.stdout == "4096\n", result

    def test_cpus_are_pinned(self, make: Factory) -> None:
        cpu = max(os.sched_getaffinity(0))
        before = os.sched_getaffinity(0)
        code = "import os,subprocess,sys; print(os.sched_getaffinity(0))"
        assert make(cpus=(cpu,)).exec(python(code)).stdout == f"{{{cpu}}}\n"
        assert make().exec(python(code)).stdout == f"{before}\n"
        assert os.sched_getaffinity(0) == before


class FileContract(_Fixtures):
    """read_file and write_file against a candidate that puts traps in their way."""

    def test_files_are_written_and_read(self, sandbox: Sandbox) -> None:
        sandbox.write_file("a/b/file", b"\x00data")
        sandbox.write_file("/scratch/file", b"scratch")
        assert sandbox.read_file("/tree/a/b/file") == b"\x00data"
        assert sandbox.read_file("/scratch/file", limit_bytes=7) == b"scratch"
        # The candidate may work on what it was given.
        code = (
            "import os\n"
            "with open('a/b/file', 'ab') as file: file.write(b'!')\n"
            "open('a/b/new', 'w').close(); os.remove('/scratch/file')\n"
        )
        result = sandbox.exec(python(code))
        assert result.ok, result
        assert sandbox.read_file("a/b/file") == b"\x00data!"
        sandbox.write_file("a/b/file", b"short")
        assert sandbox.read_file("a/b/file") == b"short"

    def test_absent_large_and_irregular_files_are_refused(self, sandbox: Sandbox) -> None:
        code = "import os; os.mkfifo('fifo'); os.mkdir('dir'); open('large','wb').write(b'x' * 101)"
        assert sandbox.exec(python(code)).ok
        for path in ("absent", "fifo", "dir", "/tree", "/scratch/absent"):
            with pytest.raises(FileNotFoundError):
                sandbox.read_file(path)
        with pytest.raises(FileNotFoundError):
            sandbox.read_file("large", limit_bytes=100)
        assert len(sandbox.read_file("large", limit_bytes=101)) == 101

    def test_paths_and_links_do_not_lead_outside(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("a secret")
        (tmp_path / "secret").chmod(0o666)
        code = (
            "import os,sys\n"
            "os.symlink(sys.argv[1] + '/secret', 'link'); os.symlink(sys.argv[1], 'dirlink')\n"
            "os.symlink('../secret', 'relative')\n"
        )
        assert sandbox.exec(python(code, str(tmp_path))).ok
        for path in (
            "link",
            "relative",
            "dirlink/secret",
            "../secret",
            "/tree/../secret",
            str(tmp_path / "secret"),
        ):
            with pytest.raises(FileNotFoundError):
                sandbox.read_file(path)
        sandbox.write_file("link", b"replaced")
        for path in ("dirlink/secret", "../secret", str(tmp_path / "secret")):
            with pytest.raises(OSError):  # noqa: PT011 - which one depends on what lies in the way
                sandbox.write_file(path, b"overwritten")
        assert (tmp_path / "secret").read_text() == "a secret"
        assert sandbox.read_file("link") == b"replaced"


class ExecContract(_Fixtures):
    """How a command's ending is told."""

    def test_result_of_a_command(self, sandbox: Sandbox) -> None:
        command = python("import sys; print('out'); print('err', file=sys.stderr); sys.exit(7)")
        result = sandbox.exec(command)
        assert (result.ending, result.returncode, result.signal) == (Ending.EXITED, 7, None)
        assert (result.stdout, result.stderr, result.output_bytes) == ("out\n", "err\n", 8)
        assert result.command == tuple(command)
        assert not result.ok
        assert 0.0 < result.duration_s < 5.0
        assert sandbox.exec(["true"]).ok

    def test_stdin_is_passed(self, sandbox: Sandbox) -> None:
        data = os.urandom(3 * MIB)
        code = "import sys,hashlib; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
        assert sandbox.exec(python(code), stdin=data).stdout.strip() == hashlib.sha256(data).hexdigest()
        assert sandbox.exec(python("import sys; print(sys.stdin.read() == '')")).stdout == "True\n"
        assert sandbox.exec(["true"], stdin=data).ok

    def test_output_need_not_be_text(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(python(r"import sys; sys.stdout.buffer.write(b'a\xff\x00b')"))
        assert result.stdout == "a�\x00b"

    def test_missing_program_is_the_commands_failure(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(["no-such-program"])
        assert result.ending is Ending.EXITED
        assert result.returncode == 127

    def test_signal_is_told(self, sandbox: Sandbox) -> None:
        result = sandbox.exec(python("import os; os.kill(os.getpid(), 11)"))
        assert (result.ending, result.returncode, result.signal) == (Ending.SIGNALLED, None, 11)

    def test_missing_directory_is_the_sandboxs_failure(self, opener: Opener, tmp_path: Path) -> None:
        with pytest.raises(SandboxError):
            opener(SandboxSpec(tree=tmp_path / "absent", scratch=tmp_path))


class LimitContract(_Fixtures):
    """Commands that hang, hide, multiply, swell and babble."""

    def test_hanging_command_is_ended_in_time(self, sandbox: Sandbox, marker: str) -> None:
        began = time.monotonic()
        code = (
            "import signal,time\n"
            "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65)); print('on', flush=True)\n"
            "while True: time.sleep(9)\n"
        )
        result = sandbox.exec(python(code, marker), timeout_s=0.5)
        assert (result.ending, result.returncode) == (Ending.TIMEOUT, None)
        assert result.stdout == "on\n"
        assert 0.5 <= time.monotonic() - began < 3.0
        assert survivors(marker) == []

    def test_limit_of_the_spec_is_the_default(self, make: Factory) -> None:
        assert make(Limits(timeout_s=0.3)).exec(["sleep", "20"]).ending is Ending.TIMEOUT

    def test_daemon_does_not_outlive_its_command(self, sandbox: Sandbox, marker: str) -> None:
        code = (
            "import os,time,sys\n"
            "if os.fork() == 0:\n"
            "    os.setsid()\n"
            "    if os.fork(): os._exit(0)\n"
            "    for fd in (0, 1, 2): os.close(fd)\n"
            "    open('/scratch/daemon', 'w').close()\n"
            "    time.sleep(30)\n"
            "while not os.path.exists('/scratch/daemon'): time.sleep(0.01)\n"
        )
        result = sandbox.exec(python(code, marker))
        assert result.ok, result
        assert result.duration_s < 5.0
        assert survivors(marker) == []

    @pytest.mark.parametrize("kind", ["processes", "threads"])
    def test_multiplying_command_is_contained(self, make: Factory, marker: str, kind: str) -> None:
        code = {
            "processes": "import os,time\nfor _ in range(10): os.fork()\ntime.sleep(30)",
            "threads": (
                "import threading,time\nfor _ in range(400): threading.Thread(target=time.sleep, args=(30,)).start()"
            ),
        }[kind]
        began = time.monotonic()
        result = make(Limits(processes=40, timeout_s=20.0)).exec(python(code, marker))
        assert result.ending in {Ending.PROCESSES, Ending.EXITED, Ending.SIGNALLED}
        assert not result.ok
        assert time.monotonic() - began < 10.0
        assert (result.peak_processes or 0) <= 100
        assert survivors(marker) == []

    @pytest.mark.parametrize("where", ["one process", "children", "tmp"])
    def test_swelling_command_is_ended(self, make: Factory, marker: str, where: str) -> None:
        code = {
            "one process": "kept = [bytearray(b'x' * (8 << 20)) for _ in range(200)]",
            "children": ("import os\nfor _ in range(8): os.fork() or (bytearray(b'x' * (60 << 20)), time.sleep(20))"),
            "tmp": "with open('/tmp/a', 'wb') as f:\n    for _ in range(400): f.write(bytes(1 << 20))",
        }[where]
        result = make(Limits(memory_bytes=200 * MIB, timeout_s=20.0)).exec(
            python(f"import time\n{code}\ntime.sleep(20)", marker)
        )
        assert (result.ending, result.returncode) == (Ending.MEMORY, None), result
        assert 200 * MIB < (result.peak_memory_bytes or 0) < 1500 * MIB
        assert survivors(marker) == []

    def test_peak_memory_and_processes_are_told(self, sandbox: Sandbox) -> None:
        code = "import os,time\nkept = b'x' * (100 << 20)\nos.fork() or os._exit(time.sleep(0.3) or 0)\nos.wait()\n"
        result = sandbox.exec(python(code))
        assert result.ok, result
        assert 100 * MIB < (result.peak_memory_bytes or 0) < 300 * MIB
        assert result.peak_processes == 2

    def test_shared_memory_is_counted_once(self, make: Factory) -> None:
        code = (
            "import os,time\nkept = b'x' * (100 << 20)\n"
            "for _ in range(4): os.fork() or os._exit(time.sleep(0.3) or 0)\n"
            "for _ in range(4): os.wait()\n"
        )
        result = make(Limits(memory_bytes=250 * MIB)).exec(python(code))
        assert result.ok, result

    def test_memory_of_nobody_is_refused(self, sandbox: Sandbox) -> None:
        code = (
            "import os,ctypes\n"
            "try: os.memfd_create('x'); print('made')\n"
            "except OSError: print('refused')\n"
            "print(ctypes.CDLL(None).shmget(0, 1 << 20, 0o1600))\n"
        )
        assert sandbox.exec(python(code)).stdout == "refused\n-1\n"

    def test_flood_is_ended_and_kept_small(self, make: Factory, tmp_path: Path, marker: str) -> None:
        log = tmp_path / "log"
        code = "import sys\nsys.stderr.write('begin\\n')\nfor _ in range(1024): sys.stdout.write('x' * 65536)"
        result = make(Limits(output_bytes=4 * MIB, timeout_s=20.0)).exec(python(code, marker), log=log)
        assert (result.ending, result.returncode) == (Ending.OUTPUT, None)
        assert result.output_bytes > 4 * MIB
        assert 10_000 < len(result.stdout) < MIB
        assert "left out" in result.stdout
        assert result.stderr == "begin\n"
        assert 3 * MIB < log.stat().st_size <= 4 * MIB
        assert survivors(marker) == []

    def test_files_cannot_grow_without_end(self, make: Factory) -> None:
        sandbox = make(Limits(file_bytes=4 * MIB))
        code = (
            "def fill(names, n):\n"
            "    try:\n"
            "        for name in names:\n"
            "            with open(name, 'wb') as f:\n"
            "                for _ in range(n): f.write(bytes(1 << 20)); f.flush()\n"
            "        print('filled')\n"
            "    except OSError: print('refused')\n"
            "fill(['/tree/large'], 8)\n"
            "for d in ('/tmp', '/dev/shm'): fill([f'{d}/{i}' for i in range(9)], 3)\n"
        )
        assert sandbox.exec(python(code)).stdout == "refused\n" * 3
        assert (sandbox.spec.tree / "large").stat().st_size <= 4 * MIB

    def test_number_of_open_files_is_limited(self, make: Factory) -> None:
        code = "import os\nfor _ in range(100): os.dup(0)"
        assert not make(Limits(open_files=64)).exec(python(code)).ok
        assert make(Limits(open_files=256)).exec(python(code)).ok


ECHO = "import sys\nfor line in sys.stdin.buffer: sys.stdout.buffer.write(line); sys.stdout.buffer.flush()"


class ProcessContract(_Fixtures):
    """Long-lived processes: slice workers and servers."""

    def test_lines_go_both_ways(self, sandbox: Sandbox, marker: str) -> None:
        process = sandbox.start(python(ECHO, marker))
        for line in (b"one", b"", b"\x00\xff", b"x" * (3 * MIB), b"last"):
            process.write_line(line)
            assert process.read_line(10.0) == line
        assert process.ended() is None
        result = process.stop()
        assert (result.ending, result.returncode) == (Ending.STOPPED, None)
        assert process.stop() == result
        assert process.ended() == result
        assert survivors(marker) == []
        with pytest.raises(ProcessFailed):
            process.write_line(b"more")
        with pytest.raises(ProcessFailed):
            process.read_line(0.1)

    def test_last_words_are_heard_before_the_end(self, sandbox: Sandbox) -> None:
        process = sandbox.start(python("import sys; print('last'); sys.stdout.write('part'); sys.exit(5)"))
        assert process.read_line(10.0) == b"last"
        with pytest.raises(ProcessFailed) as failed:
            process.read_line(10.0)
        result = failed.value.result
        assert (result.ending, result.returncode, result.stdout) == (Ending.EXITED, 5, "part")
        assert process.ended() == process.stop()

    def test_writing_to_an_ended_process_fails(self, sandbox: Sandbox) -> None:
        process = sandbox.start(python("import os; os.kill(os.getpid(), 9)"))
        assert wait_until(process.ended)
        with pytest.raises(ProcessFailed) as failed:
            process.write_line(b"anyone?")
        assert (failed.value.result.ending, failed.value.result.signal) == (Ending.SIGNALLED, 9)

    @pytest.mark.parametrize("code", ["", "import sys; sys.stdout.write('part'); sys.stdout.flush()"])
    def test_silence_is_ended(self, sandbox: Sandbox, marker: str, code: str) -> None:
        process = sandbox.start(python(f"{code}\nimport time; time.sleep(30)", marker))
        began = time.monotonic()
        with pytest.raises(ProcessFailed) as failed:
            process.read_line(0.3)
        assert failed.value.result.ending is Ending.TIMEOUT
        assert 0.3 <= time.monotonic() - began < 3.0
        assert survivors(marker) == []

    def test_deaf_process_is_ended(self, make: Factory, marker: str) -> None:
        process = make(Limits(timeout_s=0.3)).start(python("import time; time.sleep(30)", marker))
        with pytest.raises(ProcessFailed) as failed:
            process.write_line(b"x" * (8 * MIB))
        assert failed.value.result.ending is Ending.TIMEOUT

    def test_endless_line_is_ended(self, sandbox: Sandbox, marker: str) -> None:
        code = "import sys,time\nfor _ in range(2048): sys.stdout.write('x' * 65536)\ntime.sleep(30)"
        process = sandbox.start(python(code, marker))
        with pytest.raises(ProcessFailed) as failed:
            process.read_line(20.0)
        assert failed.value.result.ending is Ending.OUTPUT
        assert len(failed.value.result.stdout) < MIB

    def test_flood_on_stderr_is_ended(self, make: Factory, marker: str) -> None:
        code = "import sys\nfor _ in range(1024): sys.stderr.write('x' * 65536)"
        process = make(Limits(output_bytes=MIB)).start(python(code, marker))
        with pytest.raises(ProcessFailed) as failed:
            process.read_line(20.0)
        assert failed.value.result.ending is Ending.OUTPUT

    def test_limits_hold_for_a_started_process(self, make: Factory, marker: str) -> None:
        process = make(Limits(memory_bytes=100 * MIB)).start(
            python("kept = [bytearray(b'x' * (8 << 20)) for _ in range(100)]\ninput()", marker)
        )
        with pytest.raises(ProcessFailed) as failed:
            process.read_line(20.0)
        assert failed.value.result.ending is Ending.MEMORY

    def test_output_of_a_server_is_collected(self, sandbox: Sandbox, tmp_path: Path, marker: str) -> None:
        code = (
            "import sys,time\n"
            "print('x' * (2 << 20), flush=True); print('served', file=sys.stderr, flush=True)\n"
            "open('/scratch/ready', 'w').close(); time.sleep(30)"
        )
        log = tmp_path / "log"
        process = sandbox.start(python(code, marker), interactive=False, log=log)
        assert wait_until((sandbox.spec.scratch / "ready").exists)
        assert process.ended() is None
        result = process.stop()
        assert result.ending is Ending.STOPPED
        assert result.stderr == "served\n"
        assert result.output_bytes == (2 << 20) + 8
        assert log.stat().st_size == result.output_bytes
        with pytest.raises(ValueError, match="interactive"):
            process.read_line(0.1)

    def test_pids_are_those_of_the_host(self, sandbox: Sandbox, marker: str) -> None:
        code = "import os,time,sys\nif os.fork(): print('on', flush=True)\ntime.sleep(30)"
        process = sandbox.start(python(code, marker))
        assert process.read_line(10.0) == b"on"
        pids = process.pids()
        named = [pid for pid in pids if marker in Path(f"/proc/{pid}/cmdline").read_text()]
        assert len(named) >= 2
        assert len(named) == len(survivors(marker))
        assert os.getpid() not in pids
        process.stop()
        assert process.pids() == []

    def test_process_outlives_the_thread_that_started_it(self, sandbox: Sandbox, marker: str) -> None:
        started = []
        thread = threading.Thread(target=lambda: started.append(sandbox.start(python(ECHO, marker))))
        thread.start()
        thread.join()
        time.sleep(0.1)
        started[0].write_line(b"still here")
        assert started[0].read_line(10.0) == b"still here"

    def test_close_ends_everything(self, sandbox: Sandbox, marker: str) -> None:
        first = sandbox.start(python(ECHO, marker))
        sandbox.start(python("import time; time.sleep(30)", marker), interactive=False)
        assert survivors(marker) != []
        sandbox.close()
        assert survivors(marker) == []
        sandbox.close()
        ended = first.ended()
        assert ended is not None
        assert ended.ending is Ending.STOPPED
        with pytest.raises(SandboxError):
            sandbox.exec(["true"])
        assert sandbox.spec.tree.is_dir()

    def test_nothing_of_us_is_left(self, make: Factory) -> None:
        def held() -> tuple[int, int]:
            return len(list(Path("/proc/self/fd").iterdir())), threading.active_count()

        make().exec(["true"])
        make.close()
        before = held()
        sandbox = make()
        for _ in range(3):
            sandbox.exec(["true"])
            with pytest.raises(ProcessFailed):
                sandbox.start(["false"]).read_line(10.0)
            sandbox.start(python(ECHO)).stop()
        sandbox.start(["true"], interactive=False)
        sandbox.close()
        assert held() == before


class SandboxContract(WallContract, FileContract, ExecContract, LimitContract, ProcessContract):
    """Every promise of the Sandbox protocol."""
