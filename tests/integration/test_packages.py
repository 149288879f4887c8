"""Packages of a target, installed by the real pip from a wheel made here. Nothing needs the network."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra_agent.packages import INSIDE, PackageUnavailable, ensure_packages, mounts
from infra_agent.target import Package
from sandboxes.results import Ending
from sandboxes.sandbox import SandboxSpec, open_sandbox

CODE = "answer = 42\n"


def make_wheel(directory: Path, name: str = "tinyengine", version: str = "1.0") -> Path:
    """A wheel with one module, its vocabulary file, and a dependency that exists nowhere."""
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": CODE,
        f"{name}/vocab.txt": "a b c\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        "Requires-Dist: package-that-exists-nowhere==9.9\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for path, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        record += f"{path},sha256={digest},{len(text)}\n"
    wheel = directory / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in (files | {f"{info}/RECORD": record + f"{info}/RECORD,,\n"}).items():
            archive.writestr(path, text)
    return wheel


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a pip that knows one wheel and no index."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    make_wheel(wheels)
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_DISABLE_PIP_VERSION_CHECK", "1")
    monkeypatch.setenv("UV_OFFLINE", "1")
    return tmp_path / "home"


@pytest.fixture
def said() -> list[str]:
    return []


Ensure = Callable[..., Path]


@pytest.fixture
def ensure(home: Path, said: list[str]) -> Ensure:
    def install(sha256: dict[str, str] | None = None, requirement: str = "tinyengine==1.0") -> Path:
        package = Package(name="engine", requirement=requirement, sha256=sha256 or {})
        return ensure_packages([package], home, said.append)["engine"]

    return install


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def left_behind(home: Path) -> list[str]:
    packages = home / "packages"
    return sorted(p.name for p in packages.iterdir()) if packages.exists() else []


def test_package_is_installed_without_its_dependencies(ensure: Ensure, home: Path) -> None:
    directory = ensure()
    assert (directory / "tinyengine" / "__init__.py").read_text() == CODE
    assert left_behind(home) == [directory.name]
    assert directory.name.startswith("engine-")


def test_package_is_installed_once(ensure: Ensure, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    first = ensure()
    monkeypatch.setenv("PIP_FIND_LINKS", "/nonexistent")
    assert ensure() == first
    assert said == ["installing tinyengine==1.0 for the target (once)"]


def test_wheel_can_be_named_by_its_path(ensure: Ensure, tmp_path: Path) -> None:
    directory = ensure(requirement=str(tmp_path / "wheels" / "tinyengine-1.0-py3-none-any.whl"))
    assert (directory / "tinyengine" / "vocab.txt").exists()


def test_other_requirement_is_another_installation(ensure: Ensure, home: Path, tmp_path: Path) -> None:
    make_wheel(tmp_path / "wheels", version="2.0")
    assert ensure() != ensure(requirement="tinyengine==2.0")
    assert len(left_behind(home)) == 2


def test_expected_hashes_are_checked(ensure: Ensure) -> None:
    expected = {"tinyengine/__init__.py": sha(CODE), "tinyengine/vocab.txt": sha("a b c\n")}
    assert ensure(expected).is_dir()


@pytest.mark.parametrize(
    ("sha256", "reason"),
    [
        ({"tinyengine/__init__.py": sha("something else")}, "the target expects"),
        ({"tinyengine/libengine.so": sha(CODE)}, "holds no tinyengine/libengine.so"),
    ],
)
def test_other_files_than_expected_are_refused_and_removed(
    ensure: Ensure, home: Path, sha256: dict[str, str], reason: str
) -> None:
    with pytest.raises(PackageUnavailable, match=reason):
        ensure(sha256)
    assert left_behind(home) == []


def test_files_that_changed_after_the_installation_are_refused(ensure: Ensure) -> None:
    expected = {"tinyengine/__init__.py": sha(CODE)}
    directory = ensure(expected)
    (directory / "tinyengine" / "__init__.py").write_text("answer = 43\n")
    with pytest.raises(PackageUnavailable, match="the target expects"):
        ensure(expected)


def test_hashes_of_an_installation_that_had_none_are_checked_too(ensure: Ensure) -> None:
    ensure()
    with pytest.raises(PackageUnavailable, match="the target expects"):
        ensure({"tinyengine/__init__.py": sha("something else")})


def test_package_that_does_not_exist_says_what_to_do(ensure: Ensure, home: Path) -> None:
    with pytest.raises(PackageUnavailable) as caught:
        ensure(requirement="absent-engine==3.0")
    assert "absent-engine==3.0 can't be installed: " in str(caught.value)
    assert "Check the network and `pip config list`" in str(caught.value)
    assert left_behind(home) == []


def test_runs_that_install_at_once_do_not_disturb_each_other(ensure: Ensure, home: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        found = {job.result() for job in [pool.submit(ensure) for _ in range(3)]}
    (directory,) = found
    assert (directory / "tinyengine" / "__init__.py").read_text() == CODE
    assert left_behind(home) == [directory.name]


def test_package_is_seen_read_only_in_a_sandbox(ensure: Ensure, tmp_path: Path) -> None:
    shown = mounts({"engine": ensure()})
    assert shown[0].inside == f"{INSIDE}/engine"
    for name in ("tree", "scratch"):
        (tmp_path / name).mkdir()
    spec = SandboxSpec(
        tree=tmp_path / "tree", scratch=tmp_path / "scratch", mounts=shown, env={"PYTHONPATH": f"{INSIDE}/engine"}
    )
    sandbox = open_sandbox("bubblewrap", spec)
    try:
        answered = sandbox.exec(["python", "-B", "-c", "import tinyengine; print(tinyengine.answer)"])
        assert answered.stdout == "42\n", answered
        written = sandbox.exec(["touch", f"{INSIDE}/engine/tinyengine/more.py"])
        assert written.ending is Ending.EXITED
        assert not written.ok
    finally:
        sandbox.close()
