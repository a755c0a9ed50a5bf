"""Pack the toolkit on the controller and install it in one call."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.toolkit import build_payload
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.resolve import ROOT


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {}

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        return self.module("toolkit", build_payload(ROOT), task_vars)
