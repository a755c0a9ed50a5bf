"""`state.json`: which variant is committed on a slot, since when, and by which proof."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .atomic import read_json, write_json
from .plan import PlanError, Service

SCHEMA = 1


class StateError(Exception):
    """The state cannot be read or written; the message names the file and what to do."""


@dataclass(frozen=True)
class Active:
    """The committed service; `since` is Unix time, `tiers` the proof it passed."""

    service: Service
    since: float
    job: str
    invocation_id: str
    tiers: tuple[int, ...]

    def to_dict(self) -> dict[str, Any]:
        return {
            "service": self.service.to_dict(),
            "since": self.since,
            "job": self.job,
            "invocation_id": self.invocation_id,
            "tiers": list(self.tiers),
        }


@dataclass(frozen=True)
class State:
    """Committed truth of one slot; both parts are None on a slot that never had a swap."""

    slot: str
    active: Active | None = None
    previous: Service | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "slot": self.slot,
            "active": self.active.to_dict() if self.active else None,
            "previous": {"service": self.previous.to_dict()} if self.previous else None,
        }


def load(path: Path, slot: str) -> State:
    """The state in `path`, an empty one when there is no file; raises `StateError`."""
    try:
        data = read_json(path)
    except FileNotFoundError:
        return State(slot)
    except (OSError, ValueError) as error:
        problem = str(error).removeprefix(f"{path}: ")
        raise StateError(f"{path}: cannot be read ({problem}); {_way_out(path)}") from error
    try:
        schema = data["schema"]
        if isinstance(schema, int) and schema > SCHEMA:
            raise StateError(
                f"{path}: schema {schema} is newer than this specswap-host knows ({SCHEMA});"
                " a newer toolkit wrote it: run site.yml from that version, or remove the file to start anew"
            )
        if data["slot"] != slot:
            raise StateError(f"{path}: belongs to slot {data['slot']!r}, not {slot!r}; {_way_out(path)}")
        active, previous = data["active"], data["previous"]
        return State(
            slot,
            None
            if active is None
            else Active(
                Service.from_dict(active["service"], "active.service"),
                float(active["since"]),
                str(active["job"]),
                str(active["invocation_id"]),
                tuple(int(tier) for tier in active["tiers"]),
            ),
            None if previous is None else Service.from_dict(previous["service"], "previous.service"),
        )
    except PlanError as error:
        raise StateError(f"{path}: {error}; {_way_out(path)}") from error
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"{path}: not a state file ({type(error).__name__}: {error}); {_way_out(path)}") from error


def save(path: Path, state: State) -> None:
    """Replace the state durably: afterwards `path` holds the old or the new state, never half of one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, state.to_dict())
    except OSError as error:
        raise StateError(
            f"{path}: cannot be written ({error.strerror or error}); free space or fix its mode"
        ) from error


def _way_out(path: Path) -> str:
    return f"move it away (mv {path} {path}.bad): the next swap then takes over whatever runs on the slot"
