"""Becomes `sitecustomize.py` beside the toolkit on a fault host: does a fault at an exact place inside a job.

Python imports it in the job's process because the job's PYTHONPATH names that folder; the product knows nothing of it.
/run/specswap-fault.json: {"command": "run" or "swap", "at": event or "state_saved", "tier": N or null, "nth": 1,
"do": "kill" | "stop" | "exec", "argv": [...]} or {"command": "run", "wall_jump_s": S, "at": event}.
"""

# Short and close to the system calls, as os and glob are.
# ruff: noqa: PTH110, PTH123

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

SPEC = "/run/specswap-fault.json"


def arm(spec: dict[str, Any]) -> None:
    import specswap_host.journal as journal
    import specswap_host.state as state

    append, save = journal.Journal.append, state.save
    seen = [0]
    jumped = [0.0]
    wall = time.time

    def fire() -> None:
        seen[0] += 1
        if seen[0] != spec.get("nth", 1):
            return
        if "wall_jump_s" in spec:
            jumped[0] = spec["wall_jump_s"]
            return
        if spec["do"] == "exec":
            subprocess.run(spec["argv"], check=True, stdin=subprocess.DEVNULL)
            return
        os.kill(os.getpid(), signal.SIGKILL if spec["do"] == "kill" else signal.SIGSTOP)

    def append_and(self: Any, job: str, event: str, tier: int | None = None, **detail: Any) -> Any:
        record = append(self, job, event, tier, **detail)
        if event == spec["at"] and (spec.get("tier") is None or spec["tier"] == tier):
            fire()
        return record

    def save_and(*args: Any) -> None:
        save(*args)
        if spec["at"] == "state_saved":
            fire()

    journal.Journal.append = append_and  # type: ignore[method-assign]
    state.save = save_and
    if "wall_jump_s" in spec:
        time.time = lambda: wall() + jumped[0]


if "specswap_host" in sys.orig_argv and os.path.exists(SPEC):
    with open(SPEC) as stream:
        loaded = json.load(stream)
    if loaded["command"] in sys.orig_argv:
        arm(loaded)
