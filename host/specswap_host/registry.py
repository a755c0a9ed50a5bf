"""The slot registry: what the inventory resolved for this host, for commands that name a variant only."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .atomic import read_json, write_json
from .context import Paths
from .lock import LockBusy, SlotLock, in_passing
from .plan import PlanError, Service

SCHEMA = 1


class RegistryError(Exception):
    """A slot, variant or setting that is not registered; the message lists what is."""


@dataclass(frozen=True)
class Registry:
    """Services of one slot by variant; `wanted` is what the inventory declares, `benchmark` the compare settings."""

    slot: str
    services: dict[str, Service]
    wanted: str | None = None
    benchmark: dict[str, Any] = field(default_factory=dict)

    def service(self, variant: str) -> Service:
        if variant not in self.services:
            known = ", ".join(sorted(self.services)) or "none"
            raise RegistryError(f"slot {self.slot}: no variant {variant} is registered here (known: {known})")
        return self.services[variant]


def slots(paths: Paths) -> list[str]:
    """Names of the registered slots, and of those that have a journal though they are no longer registered."""
    registered = {path.stem for path in paths.registry_dir.glob("*.json")}
    stateful = {path.parent.name for path in paths.state_dir.glob("*/journal.jsonl")}
    return sorted(registered | stateful)


def pick_slot(paths: Paths, slot: str | None) -> str:
    """`slot`, or the only one there is; raises `RegistryError` with the known ones."""
    known = slots(paths)
    if slot is not None:
        if slot not in known:
            raise RegistryError(f"no slot {slot} on this host (known: {', '.join(known) or 'none'}); run site.yml")
        return slot
    if len(known) == 1:
        return known[0]
    raise RegistryError(f"name the slot with --slot (known: {', '.join(known)})" if known else "no slot; run site.yml")


def set_benchmark(paths: Paths, slot: str, settings: dict[str, Any], check: bool = False) -> dict[str, Any] | None:
    """Keep `settings` as the slot's compare settings; what was kept before. Nothing is written when it is the same.

    Under the slot's lock, as site.yml writes the same file. Raises `RegistryError` when there is no registry file, it
    cannot be read, or a job holds the slot (it names the owner); OSError.
    """
    path = paths.registry(slot)
    before = _read(path).get("benchmark")
    if before != settings and not check:
        try:
            with SlotLock(paths.lock(slot)).acquire(in_passing("compare.yml, keeping its settings")):
                write_json(path, {**_read(path), "benchmark": settings})
        except LockBusy as busy:
            raise RegistryError(f"slot {slot}: {busy}; wait for its end, then run the play again") from busy
    return before


def _read(path: Path) -> dict[str, Any]:
    try:
        data = read_json(path)
    except FileNotFoundError as error:
        raise RegistryError(f"{path} is not there: the slot was never provisioned; run site.yml first") from error
    except ValueError as error:
        raise RegistryError(f"{error}; run site.yml to write it again") from error
    if not isinstance(data, dict):
        raise RegistryError(f"{path}: not an object; run site.yml to write it again")
    return data


def load(paths: Paths, slot: str) -> Registry:
    """The registry of `slot`, empty when there is none; raises `RegistryError`."""
    path = paths.registry(slot)
    try:
        data = read_json(path)
    except FileNotFoundError:
        return Registry(slot, {})
    except (OSError, ValueError) as error:
        raise RegistryError(f"{path}: {error}; run site.yml to write it again") from error
    try:
        if data.get("schema", SCHEMA) > SCHEMA:
            raise RegistryError(
                f"{path}: schema {data['schema']} is newer than {SCHEMA}; update the toolkit (site.yml)"
            )
        entries = data["services"]
        entries = list(entries.values()) if isinstance(entries, dict) else entries
        services = [Service.from_dict(entry, f"services[{index}]") for index, entry in enumerate(entries)]
    except (AttributeError, KeyError, TypeError, PlanError) as error:
        raise RegistryError(f"{path}: {type(error).__name__}: {error}; run site.yml to write it again") from error
    return Registry(slot, {s.variant: s for s in services}, data.get("wanted"), data.get("benchmark") or {})
