"""Packages that a target's processes need, installed apart from infra-agent's own environment.

Each exact requirement is installed once, without its dependencies, into infra-agent's home and shown read-only
in the sandboxes. Uses pip (or uv) as the machine has configured it, so mirrors and proxies apply.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from infra_agent.errors import PlatformFailed
from infra_agent.target import Package
from sandboxes.results import sha256_file
from sandboxes.sandbox import Mount

INSIDE = "/packages"


class PackageUnavailable(PlatformFailed):
    """A package that the target needs can't be installed."""


def ensure_packages(packages: Sequence[Package], home: Path, say: Callable[[str], None]) -> dict[str, Path]:
    """Install what is missing; returns the host directory of each package by name. Raises PackageUnavailable."""
    return {package.name: _ensure(package, home / "packages", say) for package in packages}


def mounts(directories: dict[str, Path]) -> tuple[Mount, ...]:
    """How the packages are shown inside a sandbox."""
    return tuple(Mount(host=path, inside=f"{INSIDE}/{name}") for name, path in directories.items())


def _ensure(package: Package, cache: Path, say: Callable[[str], None]) -> Path:
    key = hashlib.sha256(f"{package.requirement} {sys.version_info[:2]}".encode()).hexdigest()[:12]
    final = cache / f"{package.name}-{key}"
    if final.exists():
        _verify(package, final)
        return final
    say(f"installing {package.requirement} for the target (once)")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="partial-", dir=cache) as directory:
        partial = Path(directory) / "package"
        partial.mkdir()
        _install(package, partial)
        _verify(package, partial)
        try:
            partial.rename(final)
        except OSError:
            if not final.exists():  # else another run was faster
                raise
    return final


def _install(package: Package, directory: Path) -> None:
    """Install with pip, else with uv."""
    common = ["install", "--quiet", "--no-deps", "--target", str(directory), package.requirement]
    attempts = [[sys.executable, "-m", "pip", *common]]
    if uv := shutil.which("uv"):
        attempts.append([uv, "pip", *common])
    said = ""
    for command in attempts:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        said = done.stderr.strip()[-500:] or said
    raise PackageUnavailable(
        f"{package.requirement} can't be installed: {said}\nCheck the network and `pip config list`, or install pip "
        "into this environment; then run the command again: nothing was lost."
    )


def _verify(package: Package, directory: Path) -> None:
    for name, expected in package.sha256.items():
        path = directory / name
        if not path.is_file():
            raise PackageUnavailable(f"{package.requirement} holds no {name}; the target was written for another build")
        if (found := sha256_file(path)) != expected:
            raise PackageUnavailable(
                f"{name} of {package.requirement} has SHA-256 {found}, the target expects {expected}: not used"
            )
