"""Ask the host what its slots serve, and by which proof."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.report import status_text
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import ToolkitMissing


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "slot": {"type": "str"},
        "must_agree": {"type": "bool", "default": False},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        try:
            status = self.host_job(reconnect_s=0.0).status(args["slot"])
        except ToolkitMissing:
            if not self.checking:
                raise
            return {"changed": False, "status": None, "msg": "The host has no toolkit yet."}
        slots = list(status["slots"].values())
        for slot in slots:
            self.say("\n" + status_text(slot))
        astray = [slot["slot"] for slot in slots if not slot["agree"]]
        result: dict[str, Any] = {"changed": False, "status": status}
        if astray and args["must_agree"] and not self.checking:
            reasons = [reason for slot in slots for reason in slot["reasons"]]
            result.update(failed=True, msg=f"State and host disagree in slot {', '.join(astray)}: {'; '.join(reasons)}")
        return result
