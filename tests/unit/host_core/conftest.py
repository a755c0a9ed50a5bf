from __future__ import annotations

import sys
from pathlib import Path

import pytest

DOUBLES = Path(__file__).resolve().parents[2] / "doubles"
sys.path.insert(0, str(DOUBLES))

from host_doubles import World  # noqa: E402


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)
