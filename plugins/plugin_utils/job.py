"""A job on a host, seen from the controller: submit its plan, follow its journal, outlive a dropped connection.

The host does the work and keeps the journal. Whatever happens to the controller, the job goes on; following it again
later gives the same events.
"""

from __future__ import annotations

import getpass
import json
import secrets
import shlex
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Protocol

from ansible.errors import AnsibleConnectionFailure
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import __version__
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.narrate import narrate

DOOR = "/usr/local/bin/specswap-host"
NOT_FOUND = (126, 127)
_TOOLKIT_MISSING = f"{DOOR} is not on the host. Provision it first: ansible-playbook site.yml"
REFUSED = 5
INTERRUPTED = 6
GOOD = ("swapped", "noop", "compared")
UNTOUCHED = ("noop", "refused")
_RESULT = ("outcome", "exit_code", "seconds", "downtime_s", "cause", "advice", "active", "report")


class HostCommandError(RuntimeError):
    """A command on the host failed; the text says which and what to do."""


class ToolkitMissing(HostCommandError):
    """The host has no `specswap-host` yet."""


class JobRefused(HostCommandError):
    """The host refused the plan before touching anything, e.g. because another job holds the slot."""


class Shell(Protocol):
    """What this module needs of an action plugin."""

    def __call__(self, command: str, data: bytes | None = None) -> tuple[int, str, str]:
        """Run on the host with the task's privileges: (exit status, stdout, stderr)."""


class HostJob:
    """`specswap-host` on one host. Raises HostCommandError and its subclasses."""

    def __init__(
        self,
        shell: Shell,
        reset: Callable[[], None],
        say: Callable[[str], None],
        reconnect_s: float = 180.0,
        wait_s: int = 10,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._shell, self._reset, self._say = shell, reset, say
        self._reconnect_s, self._wait_s = reconnect_s, wait_s
        self._clock, self._sleep = clock, sleep

    def call(self, *words: str, data: bytes | None = None) -> tuple[int, str, str]:
        """`specswap-host` with `words`; reconnects for up to `reconnect_s` seconds while the host is out of reach."""
        return self._robust(" ".join(shlex.quote(word) for word in (DOOR, *words)), data)

    def diff(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """What the plan would change, stop and cost. Nothing is touched."""
        return _object("diff", self.call("diff", data=_encode(plan)))

    def status(self, slot: str | None = None) -> dict[str, Any]:
        """The host's own account of its slots."""
        rc, out, err = self.call("status", "--json", *(["--slot", slot] if slot else []))
        # A host that disagrees with itself still answers; its exit status only says so to scripts.
        return _object("status", (0 if out.lstrip().startswith("{") else rc, out, err))

    def block(self, slot: str, release: str, suite: Mapping[str, Any], max_tokens: int) -> dict[str, Any]:
        """Measure what the slot serves, under its lock and proven before and after, with the client of `release`."""
        words = ("block", "--slot", slot, "--release", release, "--suite-stdin", "--max-tokens", str(max_tokens))
        rc, out, err = self.call(*words, data=_encode(suite))
        if rc == REFUSED:
            raise JobRefused(_last_words(err, out) or "the host refused to measure and did not say why")
        return _object("block", (rc, out, err))

    def run(self, plan: Mapping[str, Any]) -> dict[str, Any]:
        """Submit and follow to the end. Returns job, slot, events and how it ended (`_RESULT`)."""
        # A host that cannot be reached at all fails here and at once; from then on a lost connection is waited for.
        self._contact()
        rc, out, err = self.call("submit", data=_encode(plan))
        if rc == REFUSED:
            raise JobRefused(_last_words(err, out) or "the host refused the plan and did not say why")
        accepted = _object("submit", (rc, out, err))
        events = []
        for event in self._follow(accepted):
            events.append(event)
            self._say(narrate(event))
        return {"job": accepted["job"], "slot": accepted["slot"], "events": events, **_outcome(events, accepted)}

    def _follow(self, accepted: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        slot, job, after = str(accepted["slot"]), str(accepted["job"]), int(accepted.get("after", 0))
        while True:
            words = ("follow", "--slot", slot, "--job", job, "--after", str(after), "--wait", str(self._wait_s))
            rc, out, err = self.call(*words)
            for event in (json.loads(line) for line in out.splitlines() if line.startswith("{")):
                after = max(after, int(event["seq"]))
                yield event
                if event["event"] == "job_finished":
                    return
            if rc == INTERRUPTED:
                return
            if rc != 0:
                raise HostCommandError(f"specswap-host follow ended with status {rc}: {_last_words(err, out)}")

    def _contact(self) -> None:
        rc, _, _ = self._shell(f"test -x {DOOR}", None)
        if rc != 0:
            raise ToolkitMissing(_TOOLKIT_MISSING)

    def _robust(self, command: str, data: bytes | None) -> tuple[int, str, str]:
        lost_at: float | None = None
        while True:
            try:
                rc, out, err = self._shell(command, data)
            except AnsibleConnectionFailure:
                now = self._clock()
                if lost_at is None:
                    lost_at = now
                    if self._reconnect_s <= 0:
                        raise
                    self._say(f"connection lost; the job goes on. Trying again for up to {self._reconnect_s:.0f} s")
                if now - lost_at >= self._reconnect_s:
                    raise
                self._sleep(2.0)
                self._reset()
                continue
            if lost_at is not None:
                self._say(f"connected again after {self._clock() - lost_at:.0f} s")
            if rc in NOT_FOUND and command.startswith(DOOR):
                raise ToolkitMissing(_TOOLKIT_MISSING)
            return rc, out, err


def swap_plan(service: Mapping[str, Any], controller: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of kind swap towards `service`, which holds its unit_text."""
    return {**_plan("swap", str(service["slot"]["name"]), controller), "service": dict(service)}


def rollback_plan(slot: str, controller: Mapping[str, Any]) -> dict[str, Any]:
    """A plan of kind rollback: back to the variant that was committed before the active one."""
    return _plan("rollback", slot, controller)


def compare_plan(
    services: Mapping[str, Mapping[str, Any]],
    controller: Mapping[str, Any],
    pairs: int,
    quick: bool,
    **settings: Any,
) -> dict[str, Any]:
    """A plan of kind compare over two arms (arm name -> service with unit_text); a quick one has a single pair.

    `settings`: suite, request, runner (docs/architecture.md "Plan").
    """
    slot = str(next(iter(services.values()))["slot"]["name"])
    plan = {**_plan("compare", slot, controller), "arms": list(services), "services": dict(services)}
    return {**plan, "pairs": 1 if quick else pairs, "quick": quick, **settings}


def controller_identity(command: str) -> dict[str, str]:
    """Who drives: user, host, command and version. Never arguments, since they may hold secrets."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return {"user": user, "host": socket.gethostname(), "command": command, "version": __version__}


def failure(result: Mapping[str, Any]) -> str:
    """The message of a failed job: outcome, classified cause, first traceback, what to do, what serves now."""
    lines = [f"Slot {result['slot']}: {result['outcome']}."]
    if result.get("cause"):
        lines.append(str(result["cause"]))
    report = result.get("report") or {}
    # The first traceback is the root cause; without one the last lines of the log are the best evidence.
    lines += [f"  {line}" for line in (report.get("traceback") or report.get("lines") or [])[-30:]]
    if result.get("advice"):
        lines.append(f"What to do: {result['advice']}")
    if result.get("active"):
        lines.append(f"Serving now: {result['active']}.")
    lines.append(f"Journal on the host: specswap-host history --slot {result['slot']} (job {result.get('job')})")
    return "\n".join(lines)


def _plan(kind: str, slot: str, controller: Mapping[str, Any]) -> dict[str, Any]:
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    job = f"{stamp}-{secrets.token_hex(3)}"
    return {"schema": 1, "kind": kind, "job": job, "slot": slot, "controller": dict(controller)}


def _encode(plan: Mapping[str, Any]) -> bytes:
    return json.dumps(plan).encode()


def _object(what: str, answer: tuple[int, str, str]) -> dict[str, Any]:
    rc, out, err = answer
    if rc != 0:
        raise HostCommandError(f"specswap-host {what} ended with status {rc}: {_last_words(err, out)}")
    try:
        value = json.loads(out)
    except ValueError as error:
        raise HostCommandError(f"specswap-host {what} answered no JSON: {out[-300:]!r}") from error
    if not isinstance(value, dict):
        raise HostCommandError(f"specswap-host {what} answered {type(value).__name__}, expected an object")
    return value


def _outcome(events: list[dict[str, Any]], accepted: Mapping[str, Any]) -> dict[str, Any]:
    last = events[-1] if events else {}
    if last.get("event") == "job_finished":
        detail = dict(last.get("detail", {}))
        return {key: detail.get(key) for key in _RESULT}
    return {
        "outcome": "interrupted",
        "exit_code": 6,
        "seconds": None,
        "downtime_s": None,
        "active": None,
        "report": {},
        "cause": "the job's process is gone and its journal has no end (host restarted, or the job was killed)",
        "advice": "run the same command again: the next job settles this one first",
    }


def _last_words(*texts: str) -> str:
    for text in texts:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        if lines:
            return "\n".join(lines[-5:])
    return ""
