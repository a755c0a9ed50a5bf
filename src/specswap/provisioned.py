"""A provisioned sandbox host for checks from the outside."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from specswap import supplies
from specswap.errors import ConsoleError
from specswap.paths import Paths
from specswap.plays import Player

TAG = "sti"
STATE = Path("/run/specswap-testinfra")
HOST = "checked"


@contextmanager
def provisioned_sandbox(paths: Paths, say: Callable[[str], None]) -> Iterator[str]:
    """Brings up a sandbox host of its own, provisions it, and yields testinfra's host specification.

    Raises:
        ConsoleError: the host could not be provisioned.
    """
    from specswap_sandbox import Sandbox

    sandbox = Sandbox(state=STATE, tag=TAG, net="auto")
    try:
        sandbox.up([HOST], progress=say)
        sandbox.wait(timeout_s=90.0)
        inventories = [paths.root / "inventory", sandbox.inventory]
        supplies.fetch(paths, inventories, say, hosts=[HOST])
        result = Player(paths)("site.yml", inventories=inventories, limit=HOST, say=say)
        if not result.ok:
            raise ConsoleError(f"site.yml failed on {HOST}", f"Everything that Ansible said: {result.log}")
        yield f"ansible://{HOST}?ansible_inventory={sandbox.inventory}"
    finally:
        sandbox.down()
