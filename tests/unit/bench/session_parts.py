"""A comparison without a host: the swapper points the slot's port at a double, as a swap would at a new server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specswap_bench.blocks import run_block
from specswap_bench.session import SessionPlan, SwapOutcome

from tests.doubles.sse_double import SseDouble


def service(variant: str, port: int, **more: Any) -> dict[str, Any]:
    return {
        "slot": {"name": "smoke", "port": port, "bind": "127.0.0.1", "gpus": []},
        "variant": variant,
        "engine": "llamacpp",
        "unit": f"llamacpp-{variant}-smoke.service",
        "environment": "venv_llamacpp",
        "release": "venv_llamacpp-0123456789ab",
        "plan_hash": f"hash-{variant}",
        "identity": variant,
        "settings": {"speculative_type": variant},
        "env": {},
        "models": {"target": {"name": "tiny", "sha256": "0" * 64}},
        "user": "specswap",
        **more,
    }


def plan(port: int, pairs: int = 1, **more: Any) -> SessionPlan:
    prompts = [{"id": f"p{i}", "category": "c", "turns": [f"question {i}"], "max_tokens": 16} for i in range(2)]
    data: dict[str, Any] = {
        "schema": 1,
        "kind": "compare",
        "job": "20261201T150000Z-1a2b3c",
        "slot": "smoke",
        "arms": ["base", "cand"],
        "services": {arm: service(arm, port) for arm in ("base", "cand")},
        "pairs": pairs,
        "quick": False,
        "suite": {
            "name": "two",
            "prompts": prompts,
            "warmup": [{"id": "w", "category": "w", "turns": ["warm"], "max_tokens": 4}],
        },
        "request": {"max_tokens": 16, "temperature": 0.0, "stall_s": 5},
        "runner": ["/x"],
        "controller": {"user": "ops"},
    }
    data.update(more)
    return SessionPlan.from_dict(data)


class SwapperDouble:
    """Answers swaps from `outcomes` (by count), otherwise `swapped`; remembers all it was asked."""

    def __init__(self, active: Mapping[str, Any] | None, outcomes: dict[int, SwapOutcome] | None = None) -> None:
        self.now = active
        self.outcomes = outcomes or {}
        self.asked: list[tuple[str, bool]] = []
        self.replaced_at: set[int] = set()
        self.changed_by_hand: dict[str, dict[str, str]] = {}
        self.cancel_at: int | None = None
        self.restoring = False
        self._looks = 0

    def active(self) -> Mapping[str, Any] | None:
        return self.now

    def swap(self, service: Mapping[str, Any], fresh: bool) -> SwapOutcome:
        number = len(self.asked)
        self.asked.append((service["variant"], fresh))
        outcome = self.outcomes.get(number, SwapOutcome("swapped", 1.5, 0.75))
        if outcome.good:
            self.now = service
        return outcome

    def drop_ins(self, service: Mapping[str, Any]) -> dict[str, str]:
        return self.changed_by_hand.get(service["variant"], {})

    def incarnation(self, service: Mapping[str, Any]) -> str:
        self._looks += 1
        number = len(self.asked) - 1
        return f"{number}-{self._looks}" if number in self.replaced_at else str(number)

    def cancelled(self) -> bool:
        return not self.restoring and self.cancel_at is not None and len(self.asked) > self.cancel_at

    def begin_restore(self) -> None:
        self.restoring = True


class JournalDouble:
    """Keeps events in memory."""

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []

    def append(self, job: str, event: str, tier: int | None = None, **detail: Any) -> None:
        assert job == "20261201T150000Z-1a2b3c" and tier is None
        self.events.append((event, detail))

    def names(self) -> list[str]:
        return [event for event, _ in self.events]


def in_process(user: str, *args: Any, **options: Any) -> dict[str, Any]:
    """The session's runner without a process of its own: fast enough for many blocks."""
    assert user == "specswap"
    return run_block(*args, **options).to_dict()


def questions(server: SseDouble) -> list[tuple[str, str]]:
    """(model, question) of all measured requests, in order."""
    return [
        (truth.body["model"], truth.body["messages"][-1]["content"])
        for truth in server.truths
        if truth.body["messages"][-1]["content"] != "warm"
    ]
