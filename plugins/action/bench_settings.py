"""Tell the host how comparisons are run, so that `specswap-host compare` does as compare.yml does."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "pairs": {"type": "int", "default": 6},
        "suite": {"type": "str", "default": "story"},
        "max_tokens": {"type": "int", "default": 256},
        "temperature": {"type": "float", "default": 0.0},
        "release_path": {"type": "str", "required": True},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        slot = resolve.pick_slot(args["services"], args["slot"])
        settings = {"pairs": bench.pairs(args["pairs"]), **bench.settings(args)}
        return self.module("bench_settings", {"slot": slot, "settings": settings}, task_vars)
