"""The command line and the toy target, for every test that asks for them."""

from __future__ import annotations

from pathlib import Path

import pytest
from toy_campaign import Cli, make_target


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "home", tmp_path)


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    return make_target(tmp_path / "toy")
