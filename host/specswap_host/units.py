"""Units and registry on the host: what the inventory describes, written without touching what serves."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import json_text, read_json, write_text

SCHEMA = 1
_OURS = re.compile(r"^# specswap plan_hash=([0-9a-f]+)", re.MULTILINE)


class UnitsError(RuntimeError):
    """The services contradict each other or the host's state cannot be read; the message names the file or key."""


@dataclass(frozen=True)
class _Active:
    """What a slot committed."""

    variant: str
    unit: str
    plan_hash: str


def apply_services(spec: Mapping[str, Any], check: bool) -> dict[str, Any]:
    """Write units and registry files that differ, remove our own that are no longer wanted, reload systemd once.

    `spec`: services (list of service dicts, each with unit_text), wanted ({slot: variant}), slots_dir, units_dir,
    state_dir, purge (bool, default true). The active unit of a slot is never rewritten or removed here: the swap does
    that, so that a rollback finds the old text. A unit that runs is never removed.
    Result: changed, diff (list of {"path", "before", "after"}, None where there is no file), slots ({slot: {"active",
    "wanted", "needs_swap", "reason"}}). With `check` nothing is written.
    Errors: UnitsError, OSError.
    """
    units_dir, slots_dir, state_dir = (Path(spec[key]) for key in ("units_dir", "slots_dir", "state_dir"))
    services = _by_slot(spec["services"])
    wanted: dict[str, str] = dict(spec["wanted"])
    _refuse_contradictions(services, wanted)
    names = sorted(services.keys() | _known_slots(slots_dir, state_dir))
    active = {slot: _active(state_dir / slot / "state.json") for slot in names}
    diff: list[dict[str, Any]] = []
    _plan_units(diff, services, active, units_dir, bool(spec.get("purge", True)))
    _plan_registry(diff, services, wanted, slots_dir, bool(spec.get("purge", True)))
    if not check:
        _write(diff, units_dir)
    return {
        "changed": bool(diff),
        "diff": diff,
        "slots": {slot: _judge(services.get(slot, {}), wanted.get(slot), active[slot], units_dir) for slot in names},
    }


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


def _active(path: Path) -> _Active | None:
    try:
        state = read_json(path)
        if state["active"] is None:
            return None
        service = state["active"]["service"]
        return _Active(str(service["variant"]), str(service["unit"]), str(service["plan_hash"]))
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        problem = str(error).removeprefix(f"{path}: ")
        raise UnitsError(
            f"{path}: not a state file ({problem}); move it away (mv {path} {path}.bad):"
            " the next swap takes over what runs"
        ) from error


def _plan_units(
    diff: list[dict[str, Any]],
    services: Mapping[str, Mapping[str, Mapping[str, Any]]],
    active: Mapping[str, _Active | None],
    units_dir: Path,
    purge: bool,
) -> None:
    serving = {one.unit for one in active.values() if one is not None}
    texts = {service["unit"]: service["unit_text"] for slot in services.values() for service in slot.values()}
    for unit, text in sorted(texts.items()):
        before = _text(units_dir / unit)
        # An active unit whose file is gone is written: without it a reboot would serve nothing.
        if before != text and (unit not in serving or before is None):
            diff.append({"path": str(units_dir / unit), "before": before, "after": text})
    if not purge:
        return
    for path in sorted(units_dir.glob("*.service")):
        if path.name in texts or path.name in serving or path.is_symlink():
            continue
        before = _text(path)
        if before is not None and _OURS.search(before) and not _runs(path.name):
            diff.append({"path": str(path), "before": before, "after": None})


def _plan_registry(
    diff: list[dict[str, Any]],
    services: Mapping[str, Mapping[str, Mapping[str, Any]]],
    wanted: Mapping[str, str],
    slots_dir: Path,
    purge: bool,
) -> None:
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


def _write(diff: list[dict[str, Any]], units_dir: Path) -> None:
    reload = False
    for entry in diff:
        path = Path(entry["path"])
        is_unit = path.parent == units_dir
        reload = reload or is_unit
        if entry["after"] is None:
            if is_unit:
                _systemctl("disable", "--quiet", "--no-reload", path.name)
            path.unlink(missing_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_text(path, entry["after"], 0o644)
    if reload:
        _systemctl("daemon-reload")


def _systemctl(*words: str) -> None:
    done = subprocess.run(["systemctl", *words], capture_output=True, text=True, timeout=90, check=False)
    if done.returncode != 0 and words[0] != "disable":  # a unit that was never enabled is as good as disabled
        raise UnitsError(f"systemctl {' '.join(words)}: status {done.returncode}: {done.stderr.strip()}")


def _runs(unit: str) -> bool:
    done = subprocess.run(["systemctl", "is-active", "--quiet", unit], capture_output=True, timeout=90, check=False)
    return done.returncode == 0


def _judge(
    services: Mapping[str, Mapping[str, Any]], wanted: str | None, active: _Active | None, units_dir: Path
) -> dict[str, Any]:
    if wanted is None:
        reason = "the inventory no longer describes this slot" if not services else "the inventory names no variant"
        if active is not None:
            reason += f"; {active.variant} still serves: stop and disable {active.unit} by hand if it shall go"
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
    elif not _runs(active.unit):
        reason = f"{active.unit} was committed but does not run"
    else:
        return {"active": wanted, "wanted": wanted, "needs_swap": False, "reason": "serves as wanted"}
    needs_swap = wanted is not None
    return {"active": active.variant if active else None, "wanted": wanted, "needs_swap": needs_swap, "reason": reason}


def _text(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
