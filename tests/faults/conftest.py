"""One sandbox host for all faults; the rows go to the file that SPECSWAP_FAULT_ROWS names."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_host import NAME, FaultHost
from specswap_sandbox import Sandbox

from specswap.faults import ROWS_VARIABLE, Row, write_rows


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fast: part of ./specswap test")


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultHost]:
    if os.geteuid() != 0:
        pytest.skip("sandbox hosts need root")
    # Two runs at once need different tags: the first thing that a run does is to clear its own away.
    tag = os.environ.get("SPECSWAP_TEST_TAG", "flt")
    sandbox = Sandbox(state=Path(f"/run/specswap-faults-{tag}"), tag=tag, net="auto")
    sandbox.down()  # what a killed run left
    try:
        sandbox.up([NAME], progress=print)
        sandbox.wait(timeout_s=120)
        made = FaultHost(sandbox, tmp_path_factory.mktemp("faults"))
        made.install()
        yield made
    finally:
        if not os.environ.get("SPECSWAP_TEST_KEEP"):
            sandbox.down()


@pytest.fixture(scope="session")
def rows() -> Iterator[list[Row]]:
    found: list[Row] = []
    yield found
    target = os.environ.get(ROWS_VARIABLE)
    if target:
        write_rows(Path(target), found)
