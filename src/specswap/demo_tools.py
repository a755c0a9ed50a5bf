"""The real things that the demo works with."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from specswap_bench.report import render_table
from specswap_sandbox import Sandbox, requirements, state
from specswap_sandbox.core import DEFAULT_STATE, DEFAULT_TAG, DISKS_ON_DISK

from specswap import supplies
from specswap.demo import Tools
from specswap.errors import ConsoleError
from specswap.leftovers import Trace
from specswap.paths import Paths
from specswap.plays import Player

#: Names another sandbox for the demo, so that a measure or a test does not meet the user's own one.
TAG_VARIABLE = "SPECSWAP_DEMO_TAG"


def demo_sandbox() -> Sandbox:
    """The sandbox of the demo: the one that `./specswap sandbox` uses, or another one by `SPECSWAP_DEMO_TAG`.

    Raises:
        ConsoleError: the variable holds no usable tag.
    """
    tag = os.environ.get(TAG_VARIABLE, DEFAULT_TAG)
    if re.fullmatch(r"[a-z][a-z0-9]{0,6}", tag) is None:
        raise ConsoleError(f"{TAG_VARIABLE}={tag}: not a tag", "Use 1 to 7 lower-case letters or digits.", exit_code=2)
    folder = DEFAULT_STATE if tag == DEFAULT_TAG else DEFAULT_STATE.with_name(f"{DEFAULT_STATE.name}-{tag}")
    return Sandbox(state=folder, tag=tag)


def trace(sandbox: Sandbox) -> Trace:
    """Where to look for traces of a sandbox; made before it goes down, since its net is only known until then."""
    entry = state.registered().get(sandbox.tag, {})
    return Trace(
        tag=sandbox.tag,
        net=entry.get("net", ""),
        state=sandbox.state,
        disks=Path(entry["disks"]) if "disks" in entry else DISKS_ON_DISK / sandbox.tag,
    )


def demo_tools(paths: Paths) -> Tools:
    """Sandbox, wheelhouse, Ansible and report as they are."""
    sandbox = demo_sandbox()

    def install(say: Callable[[str], None]) -> None:
        sandbox.install_requirements(say)

    def fetch(inventories: Sequence[Path], say: Callable[[str], None]) -> None:
        supplies.fetch(paths, inventories, say, hosts=sandbox.hosts())

    return Tools(
        hosts=sandbox,
        missing=requirements,
        install=install,
        supplies=fetch,
        play=Player(paths),
        table=render_table,
        leftovers=trace(sandbox).find,
    )
