"""Render every unit on the controller and apply them all in one call."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.render import with_unit_text


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "wanted": {"type": "dict", "required": True},
        "purge": {"type": "bool", "default": True},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        args["services"] = [with_unit_text(service) for service in args["services"]]
        return self.module("service_units", args, task_vars)
