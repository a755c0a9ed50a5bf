"""Ask the host what its slots serve, and by which proof."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.report import status_text
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import HostCommandError, ToolkitMissing


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "slot": {"type": "str"},
        "must_agree": {"type": "bool", "default": False},
        "declared": {"type": "list", "elements": "str"},
        "require": {"type": "str", "choices": ["registered", "active"]},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        try:
            status = self.host_job(reconnect_s=0.0).status(args["slot"])
        except ToolkitMissing:
            if args["require"] or not self.checking:
                raise
            return {"changed": False, "status": None, "msg": "The host has no toolkit yet."}
        slots = list(status["slots"].values())
        if args["require"]:
            _refuse_without(slots, args["require"])
            return {"changed": False, "status": status}
        for slot in slots:
            self.say("\n" + status_text(slot))
        judged = [slot for slot in slots if args["declared"] is None or slot["slot"] in args["declared"]]
        astray = [slot["slot"] for slot in judged if not slot["agree"]]
        result: dict[str, Any] = {"changed": False, "status": status}
        if astray and args["must_agree"] and not self.checking:
            reasons = [reason for slot in judged for reason in slot["reasons"]]
            result.update(failed=True, msg=f"State and host disagree in slot {', '.join(astray)}: {'; '.join(reasons)}")
        return result


def _refuse_without(slots: Sequence[dict[str, Any]], require: str) -> None:
    """HostCommandError unless there are slots and, for `active`, each of them has a committed variant."""
    if not slots:
        raise HostCommandError("The host has no slot yet. Provision it first: ansible-playbook site.yml")
    for slot in slots:
        if require == "active" and slot["active"] is None:
            raise HostCommandError(
                f"Slot {slot['slot']} serves nothing that was committed. Run site.yml or swap.yml first."
            )
