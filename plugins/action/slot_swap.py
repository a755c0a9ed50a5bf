"""Swap a slot to a variant through a job on the host, and tell what happens while it happens."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec, as_diff
from ansible_collections.specswap.core.plugins.plugin_utils.job import (
    GOOD,
    UNTOUCHED,
    ToolkitMissing,
    failure,
    swap_plan,
)
from ansible_collections.specswap.core.plugins.plugin_utils.render import with_unit_text


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "variant": {"type": "str", "required": True},
        "after_toolkit": {"type": "bool", "default": False},
        "reconnect_s": {"type": "float", "default": 180.0},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        service = with_unit_text(resolve.pick(args["services"], args["variant"], args["slot"]))
        plan = swap_plan(service, self.controller())
        job = self.host_job(args["reconnect_s"])
        base = {"slot": plan["slot"], "variant": service["variant"], "unit": service["unit"]}
        if self.checking:
            try:
                base.update(would_do(job.diff(plan)))
            except ToolkitMissing:
                if not args["after_toolkit"]:
                    raise
                base.update(would_install(service))
            self.say(base["msg"])
            return base
        result = job.run(plan)
        good = result["outcome"] in GOOD
        base.update(result, changed=result["outcome"] not in UNTOUCHED, failed=not good)
        base["msg"] = told(result, service["variant"]) if good else failure(result)
        return self.brief(base)


def told(result: Mapping[str, Any], variant: str) -> str:
    """One sentence on a good end."""
    if result["outcome"] == "noop":
        return f"Slot {result['slot']} already serves {variant}; nothing was touched."
    downtime = result.get("downtime_s")
    gap = "" if downtime is None else f", {downtime:.1f} s without service"
    return f"Slot {result['slot']} serves {variant} after {result['seconds'] or 0:.1f} s{gap}."


def would_do(found: Mapping[str, Any]) -> dict[str, Any]:
    """Check mode on a provisioned host: what the host says a swap would change, stop and cost."""
    if found["noop"]:
        return {"changed": False, "plan": dict(found), "msg": f"{found['wanted']} already serves, proven now."}
    diff: list[dict[str, Any]] = [{"prepared": found["unit_diff"]}] if found["unit_diff"] else []
    title = f"command line: {found['active'] or 'nothing'} -> {found['wanted']}"
    diff.append(as_diff(_command(found["argv_before"]), _command(found["argv_after"]), title))
    if found.get("refresh"):
        text = f"would {' and '.join(found['refresh'])}, under the process that serves; nothing is stopped"
        return {"changed": True, "diff": diff[:1], "plan": dict(found), "msg": text}
    cost = found["expected_downtime_s"]
    lines = [
        f"would stop {', '.join(found['stops']) or 'nothing'}, then start {found['starts']}",
        f"expected downtime: {'unknown, no swap yet' if cost is None else f'{cost:.1f} s, from earlier swaps'}",
        *(f"would be refused now: {one['message']} -> {one['fix']}" for one in found["findings"]),
    ]
    return {"changed": True, "diff": diff, "plan": dict(found), "msg": "\n".join(lines)}


def would_install(service: Mapping[str, Any]) -> dict[str, Any]:
    """Check mode on a bare host, in a play that installs the toolkit first: nothing runs that could be stopped."""
    return {
        "changed": True,
        "diff": [as_diff("", service["unit_text"], f"/etc/systemd/system/{service['unit']}")],
        "msg": f"The host has no toolkit yet; this play would install it and start {service['unit']}.",
    }


def _command(argv: list[str]) -> str:
    """One flag with its value per line, so that the difference is the flag that changed."""
    return "".join(f"{line}\n" for line in " ".join(argv).replace(" --", "\n--").splitlines())
