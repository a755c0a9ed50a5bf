"""Measure the active variant once: one block on the host, no swap."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.atomic import write_json
from ansible_collections.specswap.core.plugins.plugin_utils import bench, resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import HostCommandError
from ansible_collections.specswap.core.plugins.plugin_utils.specswap_bench.address import service_url
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
        if self.checking:
            self.say(f"would measure the active variant of slot {slot}; nothing is swapped")
            return {"changed": False}
        suite = bench.suite(args["suite"])
        service = self._active(slot)
        words = ["runuser", "-u", service["user"], "--", "env", "PYTHONPATH=/opt/specswap/lib/current"]
        words += [f"{args['release_path']}/bin/python", "-m", "specswap_bench", "block", "--stdin"]
        order = {
            "url": service_url(service),
            "model": service["identity"],
            "suite": suite,
            "request": {"max_tokens": args["max_tokens"]},
        }
        rc, out, err = self.shell(" ".join(shlex.quote(word) for word in words), json.dumps(order).encode())
        if rc != 0:
            raise HostCommandError(f"The block on {service['unit']} failed with status {rc}:\n{err.strip()[-2000:]}")
        block = json.loads(out)
        summary = block["summary"]
        self.say(f"{service['variant']}: {block_line(summary)}")
        result = {"slot": slot, "variant": service["variant"], "plan_hash": service["plan_hash"], "block": block}
        path = self._keep({"schema": 1, "host": self.host, **result}, args["results_dir"])
        result.update(changed=False, results=str(path))
        if summary["failed"] == summary["requests"]:
            first = block["requests"][0]
            result.update(failed=True, msg=f"Every request failed, the first by {first['error']}: {path}")
        return result

    def _keep(self, result: dict[str, Any], results_dir: str) -> Path:
        """A file of its own below `blocks/` of the results; an older one is never overwritten."""
        folder = (Path(results_dir) if results_dir else resolve.home() / "results") / "blocks"
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        path = folder / f"{stamp}-{self.host}-{result['slot']}-{result['variant']}.json"
        folder.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        return path

    def _active(self, slot: str) -> dict[str, Any]:
        rc, out, _ = self.shell(f"cat {shlex.quote(f'/var/lib/specswap/{slot}/state.json')}")
        active = json.loads(out).get("active") if rc == 0 else None
        if not active:
            raise HostCommandError(f"Slot {slot} serves nothing. Run site.yml or swap.yml first.")
        service: dict[str, Any] = active["service"]
        return service
