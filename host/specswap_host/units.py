"""Units and registry on the host: what the inventory describes, written without touching what serves."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import state as states
from .atomic import json_text, read_json, write_text
from .journal import Journal, unfinished
from .lock import LockBusy, SlotLock, holder, in_passing
from .plan import Service
from .state import StateError
from .systemd import Systemd, SystemdError, job_unit

SCHEMA = 1
_OURS = re.compile(r"^# specswap plan_hash=([0-9a-f]+)", re.MULTILINE)


class UnitsError(RuntimeError):
    """The services contradict each other or the host's state cannot be read; the message names the file or key."""


def apply_services(spec: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Write units and registry files that differ, remove our own that are no longer wanted, reload systemd once.

    `spec`: services (list of service dicts, each with unit_text), wanted ({slot: variant}), slots_dir, units_dir,
    state_dir, purge (bool, default true). The active unit of a slot is never rewritten or removed here: the swap does
    that, so that a rollback finds the old text. A unit that runs is never removed. What is written is written under the
    lock of every slot, so that no job meets half of it.
    Result: changed, diff (list of {"path", "before", "after"}, None where there is no file), slots ({slot: {"active",
    "wanted", "needs_swap", "reason"}}). With `check` nothing is written.
    Errors: UnitsError (also when a job holds a slot and something is to be written: it names the owner), OSError.
    """
    try:
        return _apply(spec, check, Systemd())
    except (StateError, SystemdError) as error:
        raise UnitsError(str(error)) from error


def _apply(spec: Mapping[str, Any], check: bool, systemd: Systemd) -> dict[str, Any]:
    units_dir, slots_dir, state_dir = (Path(spec[key]) for key in ("units_dir", "slots_dir", "state_dir"))
    services = _by_slot(spec["services"])
    wanted: dict[str, str] = dict(spec["wanted"])
    _refuse_contradictions(services, wanted)
    names = sorted(services.keys() | _known_slots(slots_dir, state_dir))
    purge = bool(spec.get("purge", True))

    def look() -> tuple[dict[str, Service | None], list[dict[str, Any]]]:
        active = {slot: _committed(state_dir / slot / "state.json", slot) for slot in names}
        units = _plan_units(services, active, units_dir, purge, systemd)
        return active, units + _plan_registry(services, wanted, slots_dir, purge)

    active, diff = look()
    if diff and not check:
        with contextlib.ExitStack() as locks:
            for slot in names:
                locks.enter_context(_locked(state_dir / slot / "lock", slot))
            active, diff = look()  # again: a job may have just ended
            _write(diff, units_dir, systemd)
    slots = {}
    for slot in names:
        slots[slot] = _judge(services.get(slot, {}), wanted.get(slot), active[slot], units_dir, state_dir, systemd)
    return {"changed": bool(diff), "diff": diff, "slots": slots}


def _locked(path: Path, slot: str) -> SlotLock:
    try:
        return SlotLock(path).acquire(in_passing("site.yml, writing units"))
    except LockBusy as busy:
        way_out = "nothing was written; wait for its end (specswap-host history), then run the play again"
        raise UnitsError(f"slot {slot}: {busy}; {way_out}") from busy


def _by_slot(services: list[Mapping[str, Any]]) -> dict[str, dict[str, Mapping[str, Any]]]:
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for service in services:
        lacking = [key for key in ("slot", "variant", "unit", "plan_hash", "unit_text") if not service.get(key)]
        if lacking:
            raise UnitsError(f"service {service.get('unit', '?')}: lacks the key {lacking[0]}")
        if f"# specswap plan_hash={service['plan_hash']}" not in service["unit_text"]:
            raise UnitsError(f"service {service['unit']}: unit_text does not carry its plan_hash; render it anew")
        if "/" in service["unit"] or not service["unit"].endswith(".service"):
            raise UnitsError(f"service {service['unit']!r}: not a unit name")
        slot = found.setdefault(service["slot"]["name"], {})
        if service["variant"] in slot:
            raise UnitsError(f"slot {service['slot']['name']}: variant {service['variant']} is described twice")
        slot[service["variant"]] = service
    return found


def _refuse_contradictions(services: Mapping[str, Mapping[str, Any]], wanted: Mapping[str, str]) -> None:
    for slot, variant in wanted.items():
        if variant not in services.get(slot, {}):
            known = ", ".join(sorted(services.get(slot, {}))) or "none"
            raise UnitsError(f"slot {slot}: wanted variant {variant} has no service (known: {known})")
    names = [service["unit"] for slot in services.values() for service in slot.values()]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UnitsError(f"unit {twice[0]} is described twice; variants and slots must make different unit names")


def _known_slots(slots_dir: Path, state_dir: Path) -> set[str]:
    return {path.stem for path in slots_dir.glob("*.json")} | {
        path.parent.name for path in state_dir.glob("*/state.json")
    }


def _committed(path: Path, slot: str) -> Service | None:
    active = states.load(path, slot).active
    return active.service if active else None


def _plan_units(
    services: Mapping[str, Mapping[str, Mapping[str, Any]]],
    active: Mapping[str, Service | None],
    units_dir: Path,
    purge: bool,
    systemd: Systemd,
) -> list[dict[str, Any]]:
    diff: list[dict[str, Any]] = []
    serving = {one.unit for one in active.values() if one is not None}
    texts = {service["unit"]: service["unit_text"] for slot in services.values() for service in slot.values()}
    for unit, text in sorted(texts.items()):
        before = _text(units_dir / unit)
        # An active unit whose file is gone is written: without it a reboot would serve nothing.
        if before != text and (unit not in serving or before is None):
            diff.append({"path": str(units_dir / unit), "before": before, "after": text})
    ours: dict[str, str] = {}
    for path in sorted(units_dir.glob("*.service")) if purge else ():
        before = None if path.name in texts or path.name in serving or path.is_symlink() else _text(path)
        if before is not None and _OURS.search(before):
            ours[path.name] = before
    for state in systemd.show(*ours):
        if not state.running:
            diff.append({"path": str(units_dir / state.unit), "before": ours[state.unit], "after": None})
    return diff


def _plan_registry(
    services: Mapping[str, Mapping[str, Mapping[str, Any]]],
    wanted: Mapping[str, str],
    slots_dir: Path,
    purge: bool,
) -> list[dict[str, Any]]:
    diff: list[dict[str, Any]] = []
    for slot, variants in sorted(services.items()):
        path = slots_dir / f"{slot}.json"
        registry = {"schema": SCHEMA, "slot": slot, "wanted": wanted.get(slot), "services": dict(variants)}
        before = _text(path)
        try:
            kept = read_json(path).get("benchmark") if before is not None else None
        except (ValueError, AttributeError):
            kept = None
        if kept is not None:
            registry["benchmark"] = kept  # written by the benchmark role, not by us
        after = json_text(registry)
        if before != after:
            diff.append({"path": str(path), "before": before, "after": after})
    if purge:
        for path in sorted(slots_dir.glob("*.json")):
            if path.stem not in services:
                diff.append({"path": str(path), "before": _text(path), "after": None})
    return diff


def _write(diff: list[dict[str, Any]], units_dir: Path, systemd: Systemd) -> None:
    reload = False
    for entry in diff:
        path = Path(entry["path"])
        is_unit = path.parent == units_dir
        reload = reload or is_unit
        if entry["after"] is None:
            if is_unit:
                systemd.disable(path.name)
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, entry["after"], 0o644)
    if reload:
        systemd.daemon_reload()


def _judge(
    services: Mapping[str, Mapping[str, Any]],
    wanted: str | None,
    active: Service | None,
    units_dir: Path,
    state_dir: Path,
    systemd: Systemd,
) -> dict[str, Any]:
    reason: str | None
    if wanted is None:
        reason = "the inventory no longer describes this slot" if not services else "the inventory names no variant"
        if active is not None and not _is_gone(active.unit, systemd):
            way_out = f"stop and disable {active.unit} by hand if it shall go (systemctl disable --now {active.unit})"
            reason += f"; {active.variant} still serves, or starts at boot: {way_out}"
        else:
            active = None
    elif active is None:
        reason = f"nothing was committed yet; {wanted} is wanted"
    elif active.variant != wanted:
        reason = f"{active.variant} serves; {wanted} is wanted"
    elif active.plan_hash != services[wanted]["plan_hash"]:
        reason = (
            f"{wanted} serves with other settings (plan {active.plan_hash}, wanted {services[wanted]['plan_hash']})"
        )
    elif _text(units_dir / active.unit) not in (None, services[wanted]["unit_text"]):
        reason = f"{wanted} serves with another unit text"
    else:
        reason = _not_in_force(active.unit, systemd) or _interrupted(state_dir / active.slot.name, systemd)
        if reason is None:
            return {"active": wanted, "wanted": wanted, "needs_swap": False, "reason": "serves as wanted"}
    needs_swap = wanted is not None
    return {"active": active.variant if active else None, "wanted": wanted, "needs_swap": needs_swap, "reason": reason}


def _not_in_force(unit: str, systemd: Systemd) -> str | None:
    """Why the committed unit does not serve now or would not after a boot; None when it does."""
    (state,) = systemd.show(unit)
    if state.active_state != "active":
        return f"{unit} was committed but does not run"
    if not state.starts_at_boot:
        return f"{unit} serves, but is {state.boot_text()} at boot: it would not start"
    return None


def _is_gone(unit: str, systemd: Systemd) -> bool:
    (state,) = systemd.show(unit)
    return not state.running and state.unit_file_state != "enabled"


def _interrupted(folder: Path, systemd: Systemd) -> str | None:
    """Why a slot that serves as wanted needs a job all the same: the last one has no end, and no process any more."""
    jobs = unfinished(Journal(folder / "journal.jsonl").read())
    if not jobs or holder(folder / "lock") is not None or systemd.show(job_unit(folder.name))[0].running:
        return None
    return f"job {jobs[-1]} was interrupted and must be settled by another one"


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
