"""Measure the active variant once: one block on the host, no swap."""

from __future__ import annotations

import json
import shlex
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import HostCommandError


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "suite": {"type": "str", "default": "story"},
        "release_path": {"type": "str", "required": True},
        "max_tokens": {"type": "int", "default": 256},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        slot = resolve.pick_slot(args["services"], args["slot"])
        if self.checking:
            return {"changed": False, "msg": f"Would measure the active variant of slot {slot}; nothing is swapped."}
        service = self._active(slot)
        address = f"http://{service['slot']['bind']}:{service['slot']['port']}"
        words = [
            "runuser",
            "-u",
            service["user"],
            "--",
            "env",
            "PYTHONPATH=/opt/specswap/lib/current",
            f"{args['release_path']}/bin/python",
            *("-m", "specswap_bench", "block", "--json"),
            *("--url", address, "--model", service["identity"]),
            *("--suite", args["suite"], "--max-tokens", str(args["max_tokens"])),
        ]
        rc, out, err = self.shell(" ".join(shlex.quote(word) for word in words))
        if rc != 0:
            raise HostCommandError(f"The block on {service['unit']} failed with status {rc}:\n{err.strip()[-2000:]}")
        return {"changed": False, "slot": slot, "variant": service["variant"], "block": json.loads(out)}

    def _active(self, slot: str) -> dict[str, Any]:
        rc, out, _ = self.shell(f"cat {shlex.quote(f'/var/lib/specswap/{slot}/state.json')}")
        active = json.loads(out).get("active") if rc == 0 else None
        if not active:
            raise HostCommandError(f"Slot {slot} serves nothing. Run site.yml or swap.yml first.")
        service: dict[str, Any] = active["service"]
        return service
