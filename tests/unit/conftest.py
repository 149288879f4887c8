"""What every test of a planner that asks a model may ask for: an endpoint and a checkout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from planning import make_tree

from infra_agent.planner.testing import ScriptedEndpoint


@pytest.fixture
def endpoint() -> Iterator[ScriptedEndpoint]:
    with ScriptedEndpoint() as server:
        yield server


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    return make_tree(tmp_path)
