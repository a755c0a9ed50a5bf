"""A comparison on the host: swap, measure, swap, measure, in ABBA BAAB order, and give the slot back at the end.

Every finished block is a file at once and is never overwritten, so that a session which is cut off loses one block and
a second run of the same session goes on where it stood.
"""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specswap_host.atomic import read_json, write_json

from .address import service_url
from .blocks import BlockError
from .child import run_block_as
from .client import RequestSettings
from .comparison import build_comparison, pair_order
from .suites import Suite

EXIT_COMPARED = 0
EXIT_FAILED = 7

_COMPARISON_KEYS = ("noise_floor", "allow_differences")
_GOOD = ("swapped", "noop")
_MAX_ARM_FAILURES = 2


class SessionError(Exception):
    """The session cannot start; nothing was touched. The text names the key or file and the way out."""


@dataclass(frozen=True)
class SwapOutcome:
    """What a swap came to; `seconds` and `downtime_s` as the swap measured them, None when it did not."""

    outcome: str
    seconds: float | None = None
    downtime_s: float | None = None
    cause: str = ""
    advice: str = ""

    @property
    def good(self) -> bool:
        """True when the wanted variant serves."""
        return self.outcome in _GOOD

    def to_dict(self) -> dict[str, Any]:
        """JSON form with reasons for what was not timed."""
        out: dict[str, Any] = {"outcome": self.outcome, "seconds": self.seconds, "downtime_s": self.downtime_s}
        for key in ("seconds", "downtime_s"):
            if out[key] is None:
                out[f"{key}_reason"] = "the swap did not time it"
        if self.cause:
            out["cause"], out["advice"] = self.cause, self.advice
        return out


class Swapper(Protocol):
    """Hands the slot over. Implemented by `hostswap.HostSwapper`; doubles stand in its place in tests."""

    def active(self) -> Mapping[str, Any] | None:
        """The committed service, None when the slot is empty."""

    def swap(self, service: Mapping[str, Any], fresh: bool) -> SwapOutcome:
        """Swap to `service`. `fresh`: restart it when it serves already: every block gets a server of one age."""

    def incarnation(self, service: Mapping[str, Any]) -> str:
        """A text that changes when the service's process is replaced (systemd's invocation id)."""

    def drop_ins(self, service: Mapping[str, Any]) -> dict[str, str]:
        """Local changes of the unit that serves: file name -> hash of its text."""

    def cancelled(self) -> bool:
        """True once the job was asked to end."""

    def begin_restore(self) -> None:
        """From here on the way back is gone to its end, whatever asked the job to end."""


class EventLog(Protocol):
    """The journal's writing half."""

    def append(self, job: str, event: str, tier: int | None = None, **detail: Any) -> object:
        """Write one event."""


class _Interrupted(Exception):
    """The job was asked to end while a block was measured."""


#: `run_block_as`, or what stands in its place in tests.
BlockRunner = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class SessionPlan:
    """A plan of kind `compare`, read. `noise_floor`: relative, from a comparison of equal variants (0.018 is 1.8 %)."""

    session: str
    slot: str
    arms: tuple[str, str]
    services: Mapping[str, Mapping[str, Any]]
    pairs: int
    quick: bool
    suite: Suite
    request: RequestSettings
    noise_floor: float | None = None
    allow_differences: tuple[str, ...] = ()
    controller: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> SessionPlan:
        """Errors: SessionError naming the key."""
        if data.get("schema") != 1:
            raise SessionError(f"plan.schema: {data.get('schema')!r} is not known here; this bench reads schema 1")
        if data.get("kind") != "compare":
            raise SessionError(f"plan.kind: {data.get('kind')!r}; a session runs plans of kind compare")
        for key in ("job", "slot", "arms", "services", "pairs", "suite"):
            if key not in data:
                raise SessionError(f"plan.{key}: missing")
        arms = data["arms"]
        if not isinstance(arms, list) or len(arms) != 2 or arms[0] == arms[1]:
            raise SessionError("plan.arms: give two different variants")
        for arm in arms:
            if arm not in data["services"]:
                raise SessionError(f"plan.services.{arm}: missing, but plan.arms names it")
        pairs = data["pairs"]
        if not isinstance(pairs, int) or isinstance(pairs, bool) or pairs < 1:
            raise SessionError(f"plan.pairs: {pairs!r}; give a whole number above 0")
        request = dict(data.get("request") or {})
        floor = request.pop("noise_floor", None)
        allowed = request.pop("allow_differences", [])
        if floor is not None and (not isinstance(floor, (int, float)) or isinstance(floor, bool) or floor < 0):
            raise SessionError(
                f"plan.request.noise_floor: {floor!r}; give a relative difference such as 0.018, or null"
            )
        try:
            settings = RequestSettings.from_dict(request, "plan.request")
            suite = Suite.from_dict(data["suite"], "plan.suite")
        except ValueError as error:
            raise SessionError(str(error)) from error
        return cls(
            session=str(data["job"]),
            slot=str(data["slot"]),
            arms=(arms[0], arms[1]),
            services={arm: data["services"][arm] for arm in arms},
            pairs=pairs,
            quick=bool(data.get("quick")),
            suite=suite,
            request=settings,
            noise_floor=floor,
            allow_differences=tuple(allowed),
            controller=dict(data.get("controller") or {}),
        )


def fingerprint(service: Mapping[str, Any], block: Mapping[str, Any] | None) -> dict[str, Any]:
    """All that decides a figure: the service's identity and settings, the server's own account, machine, client."""
    target = service.get("models", {}).get("target", {})
    out: dict[str, Any] = {
        "variant": service.get("variant"),
        "engine": service.get("engine"),
        "environment": service.get("environment"),
        "release": service.get("release"),
        "plan_hash": service.get("plan_hash"),
        "identity": service.get("identity"),
        "settings": service.get("settings", {}),
        "env": service.get("env", {}),
        "target_model": target.get("name"),
        "target_sha256": target.get("sha256"),
        "draft_sha256": service.get("models", {}).get("draft", {}).get("sha256"),
    }
    if block is not None:
        out["drop_ins"] = block.get("drop_ins", {})
        for key in ("cache_protocol", "machine", "server_info", "gpus", "request", "suite_sha256", "bench_version"):
            out[key] = block.get(key)
    return out


class Session:
    """One comparison. `directory` gets `blocks/NNN.json` and `comparison.json`.

    Errors of blocks are recorded, not raised; whatever else ends `run`, the slot was given back before.
    """

    def __init__(
        self,
        plan: SessionPlan,
        swapper: Swapper,
        journal: EventLog,
        directory: Path,
        runner: BlockRunner = run_block_as,
    ) -> None:
        self.plan = plan
        self.swapper = swapper
        self.journal = journal
        self.directory = directory
        self.runner = runner
        self.blocks: list[dict[str, Any]] = []
        self.failures: list[dict[str, Any]] = []
        self.abort = ""
        self._arm_failures = dict.fromkeys(plan.arms, 0)
        self._next = 0

    def run(self) -> int:
        """Measure all pairs, swap back, write `comparison.json`. Returns 0, or 7 when a pair could not be measured."""
        (self.directory / "blocks").mkdir(parents=True, exist_ok=True)
        self._resume()
        original = self._original()
        restored: dict[str, Any] = {}
        began = time.time()
        try:
            order = pair_order(self.plan.pairs)
            failed = [pair for pair, sides in enumerate(order) if not self._pair(pair, sides)]
            for pair in failed:  # once more, at the end
                self._pair(pair, order[pair])
        finally:
            restored = self._restore(original)
            result = self._write(began, restored)
        complete = len(result["rounds"]) == self.plan.pairs
        return EXIT_COMPARED if complete and restored["ok"] else EXIT_FAILED

    def _original(self) -> Mapping[str, Any] | None:
        """The service to give the slot back to; kept in a file, as a second run finds an arm in its place."""
        path = self.directory / "original.json"
        if path.exists():
            known: Mapping[str, Any] | None = read_json(path)["service"]
            return known
        active = self.swapper.active()
        write_json(path, {"schema": 1, "service": active})
        return active

    def _resume(self) -> None:
        for path in sorted((self.directory / "blocks").glob("[0-9]*.json")):
            block = read_json(path)
            self._next = max(self._next, block["index"] + 1)
            (self.failures if block.get("failed_block") else self.blocks).append(block)

    def _pair(self, pair: int, sides: tuple[int, int]) -> bool:
        """Measure both blocks of a pair, neighbours in time; True when both are there."""
        done = {block["arm"] for block in self.blocks if block["pair"] == pair}
        if done == set(self.plan.arms):
            return True
        if self.abort:
            return False
        for lone in [block for block in self.blocks if block["pair"] == pair]:
            self._discard(lone)
        measured: list[dict[str, Any]] = []
        for side in sides:
            block = self._block(pair, self.plan.arms[side])
            if block is None:
                for other in measured:
                    self._discard(other)
                return False
            measured.append(block)
        return True

    def _discard(self, block: dict[str, Any]) -> None:
        """Take a block whose partner failed out of the comparison; its file stays."""
        self.blocks.remove(block)
        self.failures.append(
            {
                "index": block["index"],
                "arm": block["arm"],
                "pair": block["pair"],
                "cause": "the other block of its pair was not finished; not used",
            }
        )

    def _block(self, pair: int, arm: str) -> dict[str, Any] | None:
        index, self._next = self._next, self._next + 1
        service = self.plan.services[arm]
        where: dict[str, Any] = {
            "session": self.plan.session,
            "index": index,
            "arm": arm,
            "pair": pair,
            "blocks": 2 * self.plan.pairs,
        }
        self.journal.append(self.plan.session, "block_started", **where)
        head: dict[str, Any] = {"schema": 1, "index": index, "arm": arm, "pair": pair}
        outcome = self.swapper.swap(service, fresh=True)
        head["swap"] = outcome.to_dict()
        if not outcome.good:
            self._arm_failures[arm] += 1
            if outcome.outcome == "interrupted":
                self.abort = "the job was asked to end"
            elif outcome.outcome == "rollback_failed":
                self.abort = f"the slot could not be given back after a swap to {arm} failed: {outcome.cause}"
            elif self._arm_failures[arm] >= _MAX_ARM_FAILURES:
                self.abort = f"{arm} failed to start {_MAX_ARM_FAILURES} times: {outcome.cause}"
            self._failed(head, f"swap to {arm}: {outcome.outcome}: {outcome.cause}", outcome.advice)
            return None
        before = self.swapper.incarnation(service)
        try:
            block = self.runner(
                service["user"],
                service_url(service),
                service["identity"],
                self.plan.suite,
                self.plan.request,
                engine=service["engine"],
                warmup_cap=2 if self.plan.quick else 6,
                progress=self._check,
            )
        except _Interrupted:
            self.abort = "the job was asked to end"
            self._failed(head, self.abort, "run the comparison again: finished blocks are kept")
            return None
        except BlockError as error:
            # A stop of the job reaches its client, too.
            if self.swapper.cancelled():
                self.abort = "the job was asked to end"
                self._failed(head, self.abort, "run the comparison again: finished blocks are kept")
            else:
                self._failed(head, str(error), "see the unit's log")
            return None
        body = {**head, **block, "drop_ins": self.swapper.drop_ins(service)}
        if self.swapper.incarnation(service) != before:
            self._failed(body, "the server was replaced during the block", "see the unit's log for the crash")
            return None
        requests = block["requests"]
        if requests and not any(record["ok"] for record in requests):
            cause = f"every request failed; first: {requests[0]['error']}: {requests[0]['error_detail']}"
            self._failed(body, cause, "see the unit's log")
            return None
        path = self._save(body)
        self.blocks.append(body)
        summary = body["summary"]
        self.journal.append(
            self.plan.session,
            "block_finished",
            **where,
            e2e_tok_per_s=summary["e2e_tok_per_s"],
            requests=summary["requests"],
            failed=summary["failed"],
            seconds=body["seconds"],
            file=str(path),
        )
        return body

    def _check(self, _line: str) -> None:
        if self.swapper.cancelled():
            raise _Interrupted

    def _failed(self, body: dict[str, Any], cause: str, advice: str) -> None:
        body = {**body, "failed_block": True, "cause": cause, "advice": advice}
        self._save(body)
        self.failures.append(body)
        self.journal.append(
            self.plan.session,
            "block_failed",
            session=self.plan.session,
            index=body["index"],
            arm=body["arm"],
            pair=body["pair"],
            cause=cause,
            advice=advice,
        )

    def _save(self, body: dict[str, Any]) -> Path:
        path = self.directory / "blocks" / f"{body['index']:03d}.json"
        if path.exists():
            raise SessionError(f"{path}: exists already; a block is never overwritten")
        write_json(path, body)
        return path

    def _restore(self, original: Mapping[str, Any] | None) -> dict[str, Any]:
        self.swapper.begin_restore()
        if original is None:
            return {"ok": True, "outcome": "none", "text": "nothing was active before; the last arm stays"}
        outcome = self.swapper.swap(original, fresh=False)
        text = f"{original['variant']}: {outcome.outcome}"
        return {"ok": outcome.good, "variant": original["variant"], "text": text, **outcome.to_dict()}

    def _write(self, began: float, restored: Mapping[str, Any]) -> dict[str, Any]:
        plan = self.plan
        prints = {}
        for arm in plan.arms:
            own = [block for block in self.blocks if block["arm"] == arm]
            prints[arm] = fingerprint(plan.services[arm], own[-1] if own else None)
        result = build_comparison(
            session=plan.session,
            host=platform.node(),
            slot=plan.slot,
            suite=plan.suite.name,
            arms=plan.arms,
            pairs=plan.pairs,
            blocks=self.blocks,
            failures=[
                {key: failure.get(key) for key in ("index", "arm", "pair", "cause", "advice")}
                for failure in self.failures
            ],
            fingerprints=prints,
            controller=plan.controller,
            noise_floor=plan.noise_floor,
            allowed_differences=plan.allow_differences,
            quick=plan.quick,
            suite_sha256=plan.suite.sha256,
            request=plan.request.to_dict(),
            started_at=round(began, 3),
            finished_at=round(time.time(), 3),
            restored=dict(restored),
            aborted=self.abort,
        )
        write_json(self.directory / "comparison.json", result)
        return result


def load_plan(path: Path) -> SessionPlan:
    """The session plan in `path`. Errors: SessionError naming the file or the key."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SessionError(f"{path}: cannot be read: {error}") from error
    return SessionPlan.from_dict(data)
