"""Measure the active variant once: one block on the host, no swap."""

from __future__ import annotations

import json
import shlex
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

from ansible_collections.specswap.core.plugins.module_utils.specswap_host.atomic import write_json
from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.action import Action, Spec
from ansible_collections.specswap.core.plugins.plugin_utils.job import HostCommandError
from ansible_collections.specswap.core.plugins.plugin_utils.specswap_bench.suites import suite_names


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
        if args["suite"] not in suite_names():
            raise HostCommandError(
                f"{args['suite']} is not a shipped suite ({', '.join(suite_names())}); your own are for compare.yml."
            )
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
        block = json.loads(out)
        self.say(f"{service['variant']}: {_figures(block['summary'])}")
        result = {"slot": slot, "variant": service["variant"], "plan_hash": service["plan_hash"], "block": block}
        path = self._keep({"schema": 1, "host": self.host, **result}, args["results_dir"])
        return {"changed": False, "results": str(path), **result}

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


def _figures(summary: dict[str, Any]) -> str:
    """The block's figures in one line; what was not measured says why."""

    def figure(key: str, unit: str, scale: float = 1.0) -> str:
        value = summary[key]
        return f"not measured ({summary[f'{key}_reason']})" if value is None else f"{value * scale:.1f} {unit}"

    return (
        f"end to end {figure('e2e_tok_per_s', 'tok/s')}, decode {figure('decode_tok_per_s', 'tok/s')}, "
        f"first token {figure('ttft_s', 'ms', 1000)}, {summary['requests']} requests, {summary['failed']} failed"
    )
