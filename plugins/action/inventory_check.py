"""Resolve the inventory on the controller: every unknown name is refused before any connection is made."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "inventory": {"type": "dict", "required": True},
        "slot": {"type": "str"},
        "variant": {"type": "str"},
        "arms": {"type": "raw"},
        "suite": {"type": "str"},
        "require": {"type": "str", "choices": ["variant", "arms"]},
    }
    _requires_connection = False

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        services = resolve.services(args["inventory"])
        asked = args["require"] or args["slot"] or args["variant"] or args["arms"]
        slot = resolve.pick_slot(services, args["slot"]) if asked or not services else None
        if args["variant"] or args["require"] == "variant":
            resolve.pick(services, args["variant"], slot)
        names = resolve.arms(services, args["arms"], slot) if args["arms"] or args["require"] == "arms" else []
        if args["suite"]:
            bench.suite(args["suite"])
        return {
            "changed": False,
            "slot": slot,
            "arms": names,
            "wanted": resolve.wanted(args["inventory"]),
            "units": [service["unit"] for service in services],
        }
