"""Resolve the inventory on the controller: every unknown name is refused before any connection is made."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.plan import PlanError, Service
from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.checks import InventoryError, known
from ansible_collections.specswap.core.plugins.plugin_utils.render import RenderError, with_unit_text

# What an inventory may set (docs/your-own-host.md), and what playbooks/vars/specswap.yml makes of it.
_VARIABLES = frozenset(
    f"specswap_{key}" for key in (*resolve.INVENTORY_KEYS, "keep_releases", "wheelhouse_dir", "results_dir")
)
_MADE = frozenset({"specswap_inventory", "specswap_services"})


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "inventory": {"type": "dict", "required": True},
        "slot": {"type": "str"},
        "variant": {"type": "str"},
        "arms": {"type": "raw"},
        "suite": {"type": "str"},
        "pairs": {"type": "raw"},
        "results_dir": {"type": "str"},
        "require": {"type": "str", "choices": ["slot", "variant", "arms"]},
    }
    _requires_connection = False

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        _known_variables(task_vars)
        services = resolve.services(args["inventory"])
        asked = args["require"] or args["slot"] or args["variant"] or args["arms"]
        slot = resolve.pick_slot(services, args["slot"]) if asked or not services else None
        if args["variant"] or args["require"] == "variant":
            resolve.pick(services, args["variant"], slot)
        names = resolve.arms(services, args["arms"], slot) if args["arms"] or args["require"] == "arms" else []
        if args["suite"]:
            bench.suite(args["suite"])
        if args["pairs"] is not None:
            bench.pairs(args["pairs"])
        if args["results_dir"] is not None:
            bench.results_folder(args["results_dir"], make=False)
        _readable_for_hosts(services)
        return {
            "changed": False,
            "slot": slot,
            "arms": names,
            "wanted": resolve.wanted(args["inventory"]),
            "units": [service["unit"] for service in services],
        }


def _known_variables(names: Iterable[str]) -> None:
    """A variable that nothing reads is a typing error which would go unseen. Raises InventoryError."""
    ours = [name for name in names if name.startswith("specswap_")]
    unknown = sorted(name for name in ours if name not in _VARIABLES and name not in _MADE)
    if unknown:
        raise InventoryError([f"{name}: unknown variable.{known(name, _VARIABLES)}" for name in unknown])


def _readable_for_hosts(services: list[dict[str, Any]]) -> None:
    """Every service as units and plans will carry it, read as strictly as a host reads it. Raises InventoryError."""
    problems = []
    for service in services:
        path = f"specswap_variants.{service['variant']} in slot {service['slot']['name']}"
        try:
            Service.from_dict(with_unit_text(service), "service")
        except (PlanError, RenderError) as error:
            problems.append(f"{path}: {error}")
    if problems:
        raise InventoryError(problems)
