"""Collect and judge a host's facts: the first contact of most plays, so what keeps the login from root is told here."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "slots": {"type": "list", "elements": "dict", "default": []},
        "python": {"type": "str", "default": "3.9"},
        "glibc": {"type": "str", "default": "2.28"},
        "disk_mib": {"type": "int", "default": 2048},
        "libraries": {"type": "dict", "default": {}},
        "fail": {"type": "bool", "default": True},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        return self.module("host_facts", args, task_vars)
