"""The contracts that a job starts from: `Service` and `Plan`.

Both are read strictly: a missing, mistyped or unknown key raises `PlanError` with the key's path
(`service.slot.port: expected an integer, got "x"`), so that nothing is touched on half a plan.
Durations are seconds, sizes are bytes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = 1
KINDS = ("swap", "rollback", "compare")

_NAME = re.compile(r"[a-z0-9_]+\Z")
_UNIT = re.compile(r"[A-Za-z0-9:_.@-]+\.service\Z")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}\Z")


class PlanError(ValueError):
    """A plan or service that cannot be used; the message starts with the path of the key."""


class _Reader:
    """Takes the keys of one JSON object, one by one, and names the path of what is wrong."""

    def __init__(self, data: Any, path: str) -> None:
        if not isinstance(data, Mapping):
            raise PlanError(f"{path or 'plan'}: expected an object, got {_show(data)}")
        self._data = data
        self._path = path
        self._seen: set[str] = set()

    def path(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key

    def has(self, key: str) -> bool:
        return key in self._data

    def take(self, key: str) -> Any:
        self._seen.add(key)
        if key not in self._data:
            raise PlanError(f"{self.path(key)}: missing")
        return self._data[key]

    def text(self, key: str, pattern: re.Pattern[str] | None = None, empty: bool = False) -> str:
        value = self.take(key)
        if not isinstance(value, str) or not (value or empty):
            raise PlanError(f"{self.path(key)}: expected a text, got {_show(value)}")
        if pattern and not pattern.match(value):
            raise PlanError(f"{self.path(key)}: {_show(value)} does not match {pattern.pattern}")
        return value

    def absolute(self, key: str) -> str:
        value = self.text(key)
        if not Path(value).is_absolute():
            raise PlanError(f"{self.path(key)}: expected an absolute path, got {_show(value)}")
        return value

    def integer(self, key: str, low: int, high: int) -> int:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, int):
            raise PlanError(f"{self.path(key)}: expected an integer, got {_show(value)}")
        if not low <= value <= high:
            raise PlanError(f"{self.path(key)}: {value} is outside {low}..{high}")
        return value

    def seconds(self, key: str) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < 1e7:
            raise PlanError(f"{self.path(key)}: expected seconds >= 0, got {_show(value)}")
        return float(value)

    def number(self, key: str, low: float, high: float) -> float:
        value = self.take(key)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise PlanError(f"{self.path(key)}: expected a number from {low:g} to {high:g}, got {_show(value)}")
        return float(value)

    def boolean(self, key: str) -> bool:
        value = self.take(key)
        if not isinstance(value, bool):
            raise PlanError(f"{self.path(key)}: expected true or false, got {_show(value)}")
        return value

    def mapping(self, key: str) -> dict[str, Any]:
        value = self.take(key)
        if not isinstance(value, Mapping) or not all(isinstance(name, str) for name in value):
            raise PlanError(f"{self.path(key)}: expected an object, got {_show(value)}")
        return dict(value)

    def strings(self, key: str, pattern: re.Pattern[str] | None = None) -> tuple[str, ...]:
        value = self.take(key)
        if not isinstance(value, (list, tuple)):
            raise PlanError(f"{self.path(key)}: expected a list of texts, got {_show(value)}")
        for index, item in enumerate(value):
            if not isinstance(item, str):
                raise PlanError(f"{self.path(key)}[{index}]: expected a text, got {_show(item)}")
            if pattern and not pattern.match(item):
                raise PlanError(f"{self.path(key)}[{index}]: {_show(item)} does not match {pattern.pattern}")
        return tuple(value)

    def schema(self, what: str) -> None:
        value = self.integer("schema", 1, 1_000_000)
        if value > SCHEMA:
            raise PlanError(
                f"{self.path('schema')}: {what} has schema {value}, this specswap-host knows {SCHEMA};"
                " update the toolkit on this host (run site.yml) and submit again"
            )

    def done(self, optional: tuple[str, ...] = ()) -> None:
        unknown = sorted(set(self._data) - self._seen)
        if unknown:
            known = ", ".join(sorted({*self._seen, *optional}))
            raise PlanError(f"{self.path(unknown[0])}: unknown key (known: {known})")


def _show(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, (list, tuple)):
        return "a list"
    text = repr(value) if not isinstance(value, str) else f'"{value}"'
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Slot:
    """A place on the host that one variant holds: port, bind address, GPU indexes."""

    name: str
    port: int
    bind: str
    gpus: tuple[int, ...] = ()

    @classmethod
    def from_dict(cls, data: Any, path: str = "slot") -> Slot:
        reader = _Reader(data, path)
        gpus = reader.take("gpus")
        if not isinstance(gpus, (list, tuple)) or not all(isinstance(g, int) and not isinstance(g, bool) for g in gpus):
            raise PlanError(f"{path}.gpus: expected a list of integers, got {_show(gpus)}")
        slot = cls(reader.text("name", _NAME), reader.integer("port", 1, 65535), reader.text("bind"), tuple(gpus))
        reader.done()
        return slot

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "port": self.port, "bind": self.bind, "gpus": list(self.gpus)}


@dataclass(frozen=True)
class Launcher:
    """The program of ours that the unit runs, in a folder named after its content."""

    name: str
    path: str

    @classmethod
    def from_dict(cls, data: Any, path: str = "launcher") -> Launcher:
        reader = _Reader(data, path)
        launcher = cls(reader.text("name"), reader.absolute("path"))
        reader.done()
        return launcher

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "path": self.path}


@dataclass(frozen=True)
class Model:
    """Weights at a pinned revision; `size` in bytes."""

    name: str
    path: str
    sha256: str
    size: int

    @classmethod
    def from_dict(cls, data: Any, path: str = "model") -> Model:
        reader = _Reader(data, path)
        model = cls(
            reader.text("name"), reader.absolute("path"), reader.text("sha256"), reader.integer("size", 0, 1 << 60)
        )
        reader.done()
        return model

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "path": self.path, "sha256": self.sha256, "size": self.size}


@dataclass(frozen=True)
class Budgets:
    """Seconds that each phase may take; `stall_s` is silence in the log, `soak_s` the watch after the last tier."""

    load_s: float = 120.0
    stall_s: float = 60.0
    drain_s: float = 10.0
    stop_s: float = 20.0
    handover_s: float = 20.0
    gate_s: float = 60.0
    soak_s: float = 1.0

    @classmethod
    def from_dict(cls, data: Any, path: str = "budgets") -> Budgets:
        reader = _Reader(data, path)
        names = ("load_s", "stall_s", "drain_s", "stop_s", "handover_s", "gate_s", "soak_s")
        budgets = cls(*(reader.seconds(name) for name in names))
        reader.done()
        return budgets

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class GateSettings:
    """What tiers 5 (canary) and 6 (floor) ask for.

    `golden_min_match`: share of the golden texts that must come before the first difference. `min_accept_length`:
    tokens per verify step of a variant that claims drafts must be above it. `tok_floor`: share of this host's own
    record of tok/s that must be reached, 0 for none. `canary_s` and `floor_s` are the tiers' budgets in seconds.
    """

    canary: bool = True
    degenerate: bool = True
    golden_min_match: float = 0.5
    min_accept_length: float = 1.0
    tok_floor: float = 0.5
    canary_s: float = 60.0
    floor_s: float = 30.0

    @classmethod
    def from_dict(cls, data: Any, path: str = "gate") -> GateSettings:
        """Read settings, each of which may be left out; raises `PlanError` for an unknown one."""
        reader = _Reader(data, path)
        values: dict[str, Any] = {}
        for name in ("canary", "degenerate"):
            if reader.has(name):
                values[name] = reader.boolean(name)
        for name, high in (("golden_min_match", 1.0), ("tok_floor", 1.0), ("min_accept_length", 1000.0)):
            if reader.has(name):
                values[name] = reader.number(name, 0.0, high)
        for name in ("canary_s", "floor_s"):
            if reader.has(name):
                values[name] = reader.seconds(name)
        reader.done(tuple(cls.__dataclass_fields__))
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return dict(vars(self))


@dataclass(frozen=True)
class Service:
    """A variant resolved for a slot: all that is needed to write its unit and to prove that it serves."""

    slot: Slot
    variant: str
    engine: str
    unit: str
    environment: str
    release: str
    release_path: str
    launcher: Launcher | None
    models: dict[str, Model]
    argv: tuple[str, ...]
    env: dict[str, str]
    served_model: str
    identity: str
    settings: dict[str, Any]
    claims: dict[str, Any]
    user: str
    rivals: tuple[str, ...]
    budgets: Budgets
    plan_hash: str
    unit_text: str
    gate: GateSettings = field(default_factory=GateSettings)

    @classmethod
    def from_dict(cls, data: Any, path: str = "service") -> Service:
        """Read a service; every error is a `PlanError` that starts with the key's path under `path`."""
        reader = _Reader(data, path)
        reader.schema("the service")
        env = reader.mapping("env")
        for key, value in env.items():
            if not isinstance(value, str):
                raise PlanError(f"{path}.env.{key}: expected a text, got {_show(value)}")
        launcher = reader.take("launcher")
        argv = reader.strings("argv")
        if not argv or not Path(argv[0]).is_absolute():
            raise PlanError(f"{path}.argv[0]: expected the absolute path of a program")
        service = cls(
            slot=Slot.from_dict(reader.take("slot"), f"{path}.slot"),
            variant=reader.text("variant", _NAME),
            engine=reader.text("engine", _NAME),
            unit=reader.text("unit", _UNIT),
            environment=reader.text("environment"),
            release=reader.text("release"),
            release_path=reader.absolute("release_path"),
            launcher=None if launcher is None else Launcher.from_dict(launcher, f"{path}.launcher"),
            models={
                role: Model.from_dict(model, f"{path}.models.{role}")
                for role, model in reader.mapping("models").items()
            },
            argv=argv,
            env=env,
            served_model=reader.text("served_model"),
            identity=reader.text("identity"),
            settings=reader.mapping("settings"),
            claims=reader.mapping("claims"),
            user=reader.text("user"),
            rivals=reader.strings("rivals", _UNIT),
            budgets=Budgets.from_dict(reader.take("budgets"), f"{path}.budgets"),
            plan_hash=reader.text("plan_hash"),
            unit_text=reader.text("unit_text"),
            # Services that were committed before there were such settings are held to the defaults.
            gate=GateSettings.from_dict(reader.take("gate"), f"{path}.gate") if reader.has("gate") else GateSettings(),
        )
        reader.done(("gate",))
        return service

    def to_dict(self) -> dict[str, Any]:
        return {
            "schema": SCHEMA,
            "slot": self.slot.to_dict(),
            "variant": self.variant,
            "engine": self.engine,
            "unit": self.unit,
            "environment": self.environment,
            "release": self.release,
            "release_path": self.release_path,
            "launcher": self.launcher.to_dict() if self.launcher else None,
            "models": {role: model.to_dict() for role, model in self.models.items()},
            "argv": list(self.argv),
            "env": dict(self.env),
            "served_model": self.served_model,
            "identity": self.identity,
            "settings": dict(self.settings),
            "claims": dict(self.claims),
            "user": self.user,
            "rivals": list(self.rivals),
            "budgets": self.budgets.to_dict(),
            "gate": self.gate.to_dict(),
            "plan_hash": self.plan_hash,
            "unit_text": self.unit_text,
        }

    def same_as(self, other: Service) -> bool:
        """True when both would run the very same unit: nothing to swap between them."""
        return (self.unit, self.plan_hash, self.identity, self.unit_text) == (
            other.unit,
            other.plan_hash,
            other.identity,
            other.unit_text,
        )


@dataclass(frozen=True)
class Controller:
    """Who asked for the job, as far as it is known."""

    user: str = ""
    host: str = ""
    command: str = ""
    version: str = ""

    @classmethod
    def from_dict(cls, data: Any, path: str = "controller") -> Controller:
        reader = _Reader(data, path)
        values = {
            name: reader.text(name, empty=True) for name in ("user", "host", "command", "version") if reader.has(name)
        }
        reader.done()
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value}


@dataclass(frozen=True)
class Plan:
    """The input of a job. `service` is set for swaps, the fields from `arms` on for comparisons."""

    kind: str
    job: str
    slot: str
    controller: Controller = field(default_factory=Controller)
    service: Service | None = None
    arms: tuple[str, ...] = ()
    services: dict[str, Service] = field(default_factory=dict)
    pairs: int = 1
    quick: bool = False
    suite: dict[str, Any] = field(default_factory=dict)
    request: dict[str, Any] = field(default_factory=dict)
    runner: tuple[str, ...] = ()

    @classmethod
    def from_dict(cls, data: Any) -> Plan:
        """Read a plan of any kind; raises `PlanError` with the key's path."""
        reader = _Reader(data, "")
        reader.schema("the plan")
        kind = reader.text("kind")
        if kind not in KINDS:
            raise PlanError(f"kind: unknown kind {_show(kind)} (known: {', '.join(KINDS)})")
        job, slot = reader.text("job", _JOB), reader.text("slot", _NAME)
        controller = Controller.from_dict(reader.take("controller"))
        if kind == "swap":
            plan = cls(kind, job, slot, controller, service=_service_for(slot, reader.take("service"), "service"))
        elif kind == "rollback":
            plan = cls(kind, job, slot, controller)
        else:
            services = {
                arm: _service_for(slot, service, f"services.{arm}")
                for arm, service in reader.mapping("services").items()
            }
            arms = reader.strings("arms", _NAME)
            if len(arms) != 2 or arms[0] == arms[1]:
                raise PlanError("arms: expected two different variants")
            for arm in arms:
                if arm not in services:
                    raise PlanError(f"services.{arm}: missing, but it is one of the arms")
            runner = reader.strings("runner")
            if not runner or not Path(runner[0]).is_absolute():
                raise PlanError("runner[0]: expected the absolute path of a program")
            plan = cls(
                kind,
                job,
                slot,
                controller,
                arms=arms,
                services=services,
                pairs=reader.integer("pairs", 1, 1000),
                quick=reader.boolean("quick"),
                suite=reader.mapping("suite"),
                request=reader.mapping("request"),
                runner=runner,
            )
        reader.done()
        return plan

    def to_dict(self) -> dict[str, Any]:
        data: dict[str, Any] = {"schema": SCHEMA, "kind": self.kind, "job": self.job, "slot": self.slot}
        if self.service is not None:
            data["service"] = self.service.to_dict()
        if self.kind == "compare":
            data.update(
                arms=list(self.arms),
                services={arm: service.to_dict() for arm, service in self.services.items()},
                pairs=self.pairs,
                quick=self.quick,
                suite=self.suite,
                request=self.request,
                runner=list(self.runner),
            )
        data["controller"] = self.controller.to_dict()
        return data

    def swap_to(self, service: Service) -> Plan:
        """The swap that a step of this job (a block of a comparison) asks for, under the same job id."""
        return Plan("swap", self.job, self.slot, self.controller, service=service)

    def all_services(self) -> list[Service]:
        """Every service that this plan carries."""
        return [self.service] if self.service is not None else list(self.services.values())


def _service_for(slot: str, data: Any, path: str) -> Service:
    service = Service.from_dict(data, path)
    if service.slot.name != slot:
        raise PlanError(f'{path}.slot.name: "{service.slot.name}" is not the slot of the plan ("{slot}")')
    return service
