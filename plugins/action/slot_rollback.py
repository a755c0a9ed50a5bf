"""Give a slot back to the variant that was committed before the active one."""

from __future__ import annotations

from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import GOOD, UNTOUCHED, failure, rollback_plan

from .slot_swap import told, would_do


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "reconnect_s": {"type": "float", "default": 180.0},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        slot = resolve.pick_slot(args["services"], args["slot"])
        plan = rollback_plan(slot, self.controller())
        job = self.host_job(args["reconnect_s"])
        if self.checking:
            found = would_do(job.diff(plan))
            self.say(found["msg"])
            return {"slot": slot, **found}
        result = job.run(plan)
        good = result["outcome"] in GOOD
        result["changed"], result["failed"] = result["outcome"] not in UNTOUCHED, not good
        result["msg"] = told(result, "the previous variant") if good else failure(result)
        return self.brief(result)
