"""Checks of a provisioned host: `pytest tests/testinfra --hosts='ansible://ct200?ansible_inventory=...'`.

What is expected is read from the host's own registry, so the same checks hold for every inventory.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

# testinfra runs `ansible-inventory`: take the one beside this Python, also without an activated environment.
os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
REGISTRY = "/etc/specswap/slots"


def read_json(host: Host, path: str) -> Any:
    return json.loads(host.check_output("cat %s", path))


@pytest.fixture(scope="module")
def slots(host: Host) -> list[dict[str, Any]]:
    """The registered slots: name, wanted variant, services by variant."""
    if host.backend.get_connection_type() == "local" and not host.file(REGISTRY).exists:
        pytest.skip("this machine is not provisioned; give a host: --hosts='ansible://ct200?ansible_inventory=...'")
    names = host.check_output("ls %s", REGISTRY).split()
    assert names, f"{REGISTRY} is empty: run site.yml"
    found = []
    for name in names:
        data = read_json(host, f"{REGISTRY}/{name}")
        services = data["services"]
        services = list(services.values()) if isinstance(services, dict) else services
        by_variant = {service["variant"]: service for service in services}
        found.append({"name": name.removesuffix(".json"), "wanted": data.get("wanted"), "services": by_variant})
    return found


@pytest.fixture(scope="module")
def services(slots: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [service for slot in slots for service in slot["services"].values()]


@pytest.fixture(scope="module")
def states(host: Host, slots: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The committed state of every slot."""
    return {slot["name"]: read_json(host, f"/var/lib/specswap/{slot['name']}/state.json") for slot in slots}


@pytest.fixture(scope="module")
def active(states: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The service that each slot committed."""
    found = [state["active"]["service"] for state in states.values() if state["active"]]
    assert found, "no slot has an active variant: run site.yml"
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    """A failed check shows the journal of the units: the reason is usually there."""
    report: Any = yield
    fixtures = getattr(item, "funcargs", {})
    if report.when == "call" and report.failed and "host" in fixtures:
        command = fixtures["host"].run("journalctl --no-pager -o short-iso -n 60 -u 'llamacpp-*' -u 'sglang-*'")
        report.sections.append(("journal of the units", command.stdout or command.stderr))
    return report
