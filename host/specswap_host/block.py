"""Measure what a slot serves, once, without a swap: under the slot's lock, and proven before and after.

The figures of a block are worth nothing when another variant may have answered, so nobody can swap meanwhile, and the
very process that was proven at first must still be proven at the end.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import state as states
from .context import Context
from .engines.http import reachable_address
from .gate import LiveProof, prove_now
from .job import Busy
from .lock import LockBusy, Owner, SlotLock
from .plan import Controller, Service, Slot
from .systemd import drop_in_hashes

# (the client's command line, its order for stdin, the user to be) -> (exit status, stdout); what it says is shown.
Runner = Callable[[list[str], str, str], "tuple[int, str]"]


class BlockError(Exception):
    """No figures; `touched` is False when nothing was asked of the server, True when a block was lost."""

    def __init__(self, message: str, touched: bool = False) -> None:
        super().__init__(message)
        self.touched = touched


def base_url(slot: Slot) -> str:
    """Base URL of a slot as a client on the host reaches it; IPv6 addresses stand in brackets."""
    address = reachable_address(slot.bind)
    return f"http://{f'[{address}]' if ':' in address else address}:{slot.port}"


def as_user(argv: list[str], order: str, user: str) -> tuple[int, str]:
    """Run the client under the service's user, with our own packages and nothing of the caller's environment."""
    if os.geteuid() != 0:
        raise BlockError(f"only root may run the client as user {user}: use sudo")
    package = Path(__file__).resolve().parent.parent
    env = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "PYTHONPATH": str(package), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            argv,
            input=order,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
            env=env,
            cwd="/",
            user=user,
            group=pwd.getpwnam(user).pw_gid,
            extra_groups=[],
        )
    except (OSError, LookupError) as error:
        raise BlockError(f"{argv[0]}: {error}; run site.yml and bench.yml: they build what it needs") from error
    return done.returncode, done.stdout


def measure_block(
    ctx: Context,
    slot: str,
    release: str,
    order: Mapping[str, Any],
    asked: Controller,
    runner: Runner = as_user,
) -> dict[str, Any]:
    """One block on the committed service of `slot`.

    `release` is the environment of the client (an absolute path), `order` its suite and request settings. Result:
    schema, slot, variant, plan_hash, identity, unit, invocation_id, tiers (proven before and after), drop_ins (see
    `drop_in_hashes`), block (as `specswap_bench` makes it). Errors: `Busy` with the owner, `BlockError`, `StateError`,
    `SystemdError`.
    """
    lock = SlotLock(ctx.paths.lock(slot))
    name = time.strftime("block-%Y%m%dT%H%M%SZ", time.gmtime())
    try:
        lock.acquire(Owner(os.getpid(), name, asked.user, asked.host, asked.command or "block", time.time()))
    except LockBusy as busy:
        raise Busy(str(busy), busy.owner) from busy
    with lock:
        active = states.load(ctx.paths.state(slot), slot).active
        if active is None:
            raise BlockError(f"slot {slot} serves nothing that was committed; run site.yml or swap to a variant first")
        service = active.service
        before = _proven(ctx, service)
        full = {**order, "url": base_url(service.slot), "model": service.identity, "engine": service.engine}
        argv = [f"{release}/bin/python", "-m", "specswap_bench", "block", "--stdin"]
        code, out = runner(argv, json.dumps(full), service.user)
        if code != 0:
            raise BlockError(f"the block on {service.unit} failed: its client ended with exit code {code}", True)
        try:
            block = json.loads(out)
        except ValueError as error:
            raise BlockError(f"the client of the block answered no JSON: {out[-300:]!r}", True) from error
        after = prove_now(ctx, service)
        if not after.ok:
            raise BlockError(
                f"{service.variant} stopped serving during the block, nothing is kept: {after.problem}", True
            )
        if _process(after) != _process(before):
            raise BlockError(f"{service.unit} was started anew during the block, nothing is kept; see its log", True)
        return {
            "schema": 1,
            "slot": slot,
            "variant": service.variant,
            "plan_hash": service.plan_hash,
            "identity": service.identity,
            "unit": service.unit,
            "invocation_id": before.unit.invocation_id,
            "tiers": list(before.tiers),
            "drop_ins": drop_in_hashes(before.unit),
            "block": block,
        }


def _proven(ctx: Context, service: Service) -> LiveProof:
    proof = prove_now(ctx, service)
    if not proof.ok:
        way_out = "see specswap-host status, and swap to what the slot shall serve"
        raise BlockError(f"{service.variant} is committed, but does not serve now: {proof.problem}; {way_out}")
    return proof


def _process(proof: LiveProof) -> tuple[str, int, int]:
    return proof.unit.invocation_id, proof.unit.main_pid, proof.unit.n_restarts
