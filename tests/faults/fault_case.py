"""What a fault is, and the judgement: what was told against what is true on the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fault_host import EXIT_CODES, PORT, FaultHost, Told, Truth


def swap_to_b(host: FaultHost) -> Told:
    """What an operator does while the fault is there."""
    return host.swap("b")


def nothing(_: FaultHost) -> None:
    return None


@dataclass(frozen=True)
class Fault:
    """One fault and what must come of it.

    Attributes:
        id, kind, injected: name, kind and what is done, in words for the table.
        outcome, noticed_by: what must be told, in the words of the contract and of `noticed_by`.
        serves: the variant that must serve in the end, None for nobody.
        committed: the variant that `state.json` must name in the end; "serves" means the same.
        untouched: nothing may have changed on the host between the injection and the end.
        server, server_a: options of the double behind `b` and behind `a`; budgets of `b` in seconds.
        inject: what is done to the host before the command; act: the command, gives what was told.
        says: texts that the told cause must hold.
        start: whether `a` is proven first.
        fast: part of `./specswap test`.
        after: further checks of the host's truth; raise AssertionError.
        clean: whether the host must be free of leftovers of ours (processes, gate drop-ins, enabled rivals).
        running: units of ours that may run unproven, as the end of the job says, though nobody serves.
        agrees: what `specswap-host status` must say about state and truth, where it does not follow from the rest.
    """

    id: str
    kind: str
    injected: str
    outcome: str
    noticed_by: str
    serves: str | None
    committed: str | None = "serves"
    untouched: bool = False
    server: Sequence[str] = ()
    server_a: Sequence[str] = ()
    budgets: Mapping[str, float] = field(default_factory=dict)
    inject: Callable[[FaultHost], object] = nothing
    act: Callable[[FaultHost], Told] = swap_to_b
    says: Sequence[str] = ()
    start: bool = True
    fast: bool = False
    after: Callable[[FaultHost, Truth], object] | None = None
    clean: bool = True
    running: Sequence[str] = ()
    agrees: bool | None = None


def noticed_by(events: Sequence[Mapping[str, Any]], text: str) -> str:
    """Which part of the swap noticed the fault, out of the events and words that the operator saw."""
    last: Mapping[str, Any] = {}
    if any(event["event"] == "settled" for event in events):
        return "settlement"
    for event in events:
        name, detail = event["event"], event["detail"]
        if name == "crashed":
            return "crash"
        if name == "tier_failed":
            return f"tier {event['tier']}"
        if name == "handover_failed":
            return "hand-over"
        if name == "preflight_failed":
            return f"preflight: {detail['findings'][0]['id']}"
        if name == "job_finished":
            last = detail
    for event in events:
        if event["event"] == "journal_repaired":
            return "journal"
        if event["event"] == "stopped" and event["detail"]["killed"]:
            return "stop budget"
        if event["detail"].get("leftover"):
            return "lock record"
    cause = str(last.get("cause") or ("" if last else text))
    for word, part in (("busy", "lock"), ("state.json", "state"), ("journal.jsonl", "journal"), ("schema", "schema")):
        if word in cause:
            return part
    if "/lock" in cause or "plan.json" in cause:
        return "journal"
    if last.get("outcome") == "interrupted":
        return "signal"
    refreshed = any(event["event"] == "committed" and event["detail"].get("refreshed") for event in events)
    if last.get("outcome") == "noop" or refreshed:
        return "proof of what serves"
    return "gate" if any(event["event"] == "soak_passed" for event in events) else cause[:60] or "nothing"


def judge(fault: Fault, said: Told, before: Truth, after: Truth, host: FaultHost) -> list[str]:
    """Every way in which report, truth and expectation differ; empty when all is as it must be."""
    wrong = []

    def expect(true: bool, words: str) -> None:
        if not true:
            wrong.append(words)

    expect(said.outcome == fault.outcome, f"told {said.outcome}, expected {fault.outcome}: {said.cause[-300:]}")
    expect(said.exit_code == EXIT_CODES.get(said.outcome), f"{said.outcome} came with exit code {said.exit_code}")
    noticed = noticed_by(said.events, said.text)
    expect(noticed == fault.noticed_by, f"noticed by {noticed}, expected {fault.noticed_by}")
    for words in fault.says:
        expect(words in said.cause + said.text, f"the cause does not say {words!r}: {said.cause[:300]}")
    wrong += _serving(fault, said, after)
    wrong += _committed(fault, said, after)
    if fault.clean:
        wrong += _leftovers(fault, after)
    if fault.untouched:
        wrong += _touched(before, after)
    wrong += _status(fault, after, host)
    if fault.after is not None:
        try:
            fault.after(host, after)
        except AssertionError as error:
            wrong.append(str(error) or "the fault's own check failed")
    return wrong


def _serving(fault: Fault, said: Told, after: Truth) -> list[str]:
    wrong = []
    owners = {one["unit"] for one in after.data["listeners"] if not one["address"].startswith("[::1]")}
    if fault.serves is None:
        ours = [variant for variant in after.active if variant not in fault.running]
        if ours:
            wrong.append(f"{', '.join(ours)} is active, nobody should be")
    else:
        if after.active != [fault.serves]:
            wrong.append(f"active units: {after.active}, expected {fault.serves} alone")
        if owners != {after.unit_of[fault.serves]}:
            wrong.append(f"port {PORT} belongs to {sorted(owners) or 'nobody'}, expected the unit of {fault.serves}")
        if after.answers != fault.serves:
            wrong.append(f"{after.data['answer']['names'] or 'nobody'} answers, expected {fault.serves}")
        if not after.data["answer"]["generates"]:
            wrong.append(f"{fault.serves} does not generate")
    named = said.finished.get("active")
    # Where the host contradicts itself nothing may be claimed, even if a real request is still answered.
    if said.finished and named != fault.serves and not (named is None and fault.agrees is False):
        wrong.append(f"the end of the job names {said.finished.get('active')} as serving, true is {fault.serves}")
    return wrong


def _committed(fault: Fault, said: Told, after: Truth) -> list[str]:
    wanted = fault.serves if fault.committed == "serves" else fault.committed
    active = (after.data["state"] or {}).get("active")
    now = active["service"]["variant"] if active else None
    if now != wanted:
        return [f"state.json names {now}, expected {wanted}"]
    # A boot or a way back on a full disk leaves the invocation that was proven when it was committed.
    proven = said.outcome in ("swapped", "rolled_back")
    if (
        proven
        and active
        and fault.serves == wanted
        and active["invocation_id"] != after.unit(wanted or "", "InvocationID")
    ):
        return [f"state.json holds the invocation {active['invocation_id']}, {wanted} runs as another one"]
    return []


def _leftovers(fault: Fault, after: Truth) -> list[str]:
    wrong = []
    homes = tuple(after.unit_of[one] for one in (fault.serves, *fault.running) if one)
    strays = [one for one in after.data["processes"] if not one.startswith(homes)] if homes else after.data["processes"]
    if strays:
        wrong.append(f"processes left: {strays}")
    if after.data["gate_drop_ins"]:
        wrong.append(f"the gate's drop-ins are left: {after.data['gate_drop_ins']}")
    for variant in after.unit_of:
        state = after.unit(variant, "UnitFileState")
        if (state == "enabled") != (variant == fault.serves) and fault.serves:
            wrong.append(f"{variant} is {state} at boot, {fault.serves} serves")
    if after.data["job_unit"] not in ("inactive", "failed"):
        wrong.append(f"the job's unit is {after.data['job_unit']}")
    return wrong


def _touched(before: Truth, after: Truth) -> list[str]:
    wrong = []
    for variant in before.unit_of:
        for key in ("InvocationID", "MainPID", "ActiveState", "UnitFileState"):
            old, new = before.unit(variant, key), after.unit(variant, key)
            if old != new:
                wrong.append(f"touched: {key} of {variant} was {old}, is {new}")
    if before.data["files"] != after.data["files"]:
        changed = {item[0] for item in set(before.data["files"].items()) ^ set(after.data["files"].items())}
        wrong.append(f"touched: {sorted(changed)}")
    return wrong


def _status(fault: Fault, after: Truth, host: FaultHost) -> list[str]:
    """`specswap-host status` must say that state and truth agree when they do, and only then."""
    wanted = fault.serves if fault.committed == "serves" else fault.committed
    agree = fault.serves == wanted and not (fault.serves is None and after.data["listeners"])
    agree = agree if fault.agrees is None else fault.agrees
    said = host.specswap("status", "--json")
    try:
        slot = json.loads(said.text.splitlines()[0])["slots"]["smoke"]
    except (ValueError, KeyError, IndexError):
        return [f"status said {said.text[:200]!r}"]
    if slot["agree"] != agree:
        return [f"status says agree={slot['agree']} ({slot['reasons']}), expected {agree}"]
    return []
