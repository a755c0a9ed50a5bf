"""The judgement itself: a true report passes, every kind of lie is named. No host is needed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from fault_case import Fault, judge
from fault_host import Told, Truth

UNITS = {variant: f"llamacpp-{variant}-smoke.service" for variant in ("a", "b", "c")}
FAULT = Fault("x", "process", "nothing", "swapped", "gate", "b")
REFUSED = Fault("x", "process", "nothing", "refused", "lock", "b", untouched=True)


def truth(change: Callable[[dict[str, Any]], object] = lambda _: None) -> Truth:
    """`b` serves, as committed."""

    def unit(runs: bool) -> dict[str, str]:
        return {
            "ActiveState": "active" if runs else "inactive",
            "InvocationID": "i1" if runs else "",
            "UnitFileState": "enabled" if runs else "disabled",
            "MainPID": "7" if runs else "0",
        }

    data: dict[str, Any] = {
        "units": {name: unit(variant == "b") for variant, name in UNITS.items()},
        "job_unit": "inactive",
        "listeners": [{"address": "127.0.0.1:30001", "pid": 7, "unit": UNITS["b"]}],
        "answer": {"by": "b", "names": ["m@smoke.b"], "generates": True},
        "state": {"active": {"service": {"variant": "b"}, "invocation_id": "i1"}},
        "files": {"/etc/u": "1"},
        "gate_drop_ins": [],
        "processes": [f"{UNITS['b']}: python"],
        "journal": "",
    }
    change(data)
    return Truth(data, UNITS)


def told(outcome: str = "swapped", code: int = 0, active: str | None = "b") -> Told:
    events = [
        {"event": "soak_passed", "tier": None, "detail": {"killed": []}},
        {"event": "job_finished", "tier": None, "detail": {"outcome": outcome, "active": active, "cause": ""}},
    ]
    return Told(outcome, code, "", events, 1.0)


def host(agree: bool = True) -> Any:
    text = json.dumps({"slots": {"smoke": {"agree": agree, "reasons": []}}})
    return SimpleNamespace(specswap=lambda *_: Told("", 0, text, [], 0.0))


@pytest.mark.fast
def test_a_true_report_passes() -> None:
    assert judge(FAULT, told(), truth(), truth(), host()) == []
    refused = Told("refused", 5, "the slot is busy", [], 0.1)
    assert judge(REFUSED, refused, truth(), truth(), host()) == []


def _set(*path: str, to: Any) -> Callable[[dict[str, Any]], object]:
    def change(data: dict[str, Any]) -> None:
        for key in path[:-1]:
            data = data[key]
        data[path[-1]] = to

    return change


@pytest.mark.fast
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("answer", to={"by": "a", "names": ["m@smoke.a"], "generates": True}), "answers, expected b"),
        (_set("answer", "generates", to=False), "does not generate"),
        (_set("listeners", to=[{"address": "127.0.0.1:30001", "pid": 9, "unit": "x.service"}]), "port 30001 belongs"),
        (_set("units", UNITS["a"], "ActiveState", to="active"), "expected b alone"),
        (_set("units", UNITS["a"], "UnitFileState", to="enabled"), "a is enabled at boot"),
        (_set("units", UNITS["b"], "UnitFileState", to="disabled"), "b is disabled at boot"),
        (_set("state", "active", "service", "variant", to="a"), "state.json names a"),
        (_set("state", "active", "invocation_id", to="old"), "runs as another one"),
        (_set("processes", to=[": stray"]), "processes left"),
        (_set("gate_drop_ins", to=["/run/x"]), "drop-ins are left"),
        (_set("job_unit", to="active"), "the job's unit is active"),
    ],
)
def test_a_host_that_differs_is_named(change: Callable[[dict[str, Any]], object], words: str) -> None:
    wrong = judge(FAULT, told(), truth(), truth(change), host())
    assert any(words in one for one in wrong), wrong


@pytest.mark.fast
@pytest.mark.parametrize(
    ("said", "words"),
    [
        (told("rolled_back", 3), "told rolled_back, expected swapped"),
        (told(code=3), "came with exit code 3"),
        (told(active="a"), "names a as serving"),
    ],
)
def test_a_report_that_differs_is_named(said: Told, words: str) -> None:
    wrong = judge(FAULT, said, truth(), truth(), host())
    assert any(words in one for one in wrong), wrong


@pytest.mark.fast
def test_status_must_agree_exactly_when_the_host_does() -> None:
    assert any("status says" in one for one in judge(FAULT, told(), truth(), truth(), host(agree=False)))


@pytest.mark.fast
@pytest.mark.parametrize("path", [("units", UNITS["b"], "InvocationID"), ("files", "/etc/u")])
def test_a_refusal_that_touched_something_is_named(path: tuple[str, ...]) -> None:
    before = truth()
    after = Truth(copy.deepcopy(before.data), UNITS)
    _set(*path, to="other")(after.data)
    refused = Told("refused", 5, "the slot is busy", [], 0.1)
    assert any("touched" in one for one in judge(REFUSED, refused, before, after, host()))
