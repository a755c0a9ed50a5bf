"""Measure the active variant once: one block on the host, no swap."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.atomic import write_json
from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.specswap_bench.figures import block_line


class ActionModule(Action):
    SPEC: ClassVar[Spec] = {
        "services": {"type": "list", "elements": "dict", "required": True},
        "slot": {"type": "str"},
        "suite": {"type": "str", "default": "story"},
        "release_path": {"type": "str", "required": True},
        "max_tokens": {"type": "int", "default": 256},
        "results_dir": {"type": "str", "default": ""},
    }

    def work(self, args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        slot = resolve.pick_slot(args["services"], args["slot"])
        suite = bench.suite(args["suite"])
        results = bench.results_folder(args["results_dir"], make=not self.checking)
        if self.checking:
            self.say(f"would measure the active variant of slot {slot}; nothing is swapped")
            return {"changed": False}
        # Sent again over a new connection, it would meet the lock of the block that still runs.
        measured = self.host_job(reconnect_s=0.0).block(slot, args["release_path"], suite, args["max_tokens"])
        block = measured["block"]
        summary = block["summary"]
        self.say(f"{measured['variant']}: {block_line(summary)}")
        result = {"slot": slot, "variant": measured["variant"], "plan_hash": measured["plan_hash"], "block": block}
        path = self._keep({**measured, "schema": 1, "host": self.host}, results)
        result.update(changed=False, results=str(path))
        if summary["failed"] == summary["requests"]:
            first = block["requests"][0]
            result.update(failed=True, msg=f"Every request failed, the first by {first['error']}: {path}")
        return result

    def _keep(self, result: dict[str, Any], results: Path) -> Path:
        """A file of its own below `blocks/` of the results; an older one is never overwritten."""
        folder = results / "blocks"
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = folder / f"{stamp}-{self.host}-{result['slot']}-{result['variant']}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        return path
