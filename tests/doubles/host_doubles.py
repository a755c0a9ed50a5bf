"""A simulated host for the swap: units, processes, ports and an engine on a clock that only sleeping moves.

Unit behaviour is scripted per unit with `Behaviour`, so that every way to die or to lie can be met in milliseconds.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specswap_host.context import Clock, Context, Paths
from specswap_host.engines import Answer, Ask, Finding, GenerateError, Probe
from specswap_host.plan import GateSettings, Plan, Service
from specswap_host.procfs import Listener, ProcFs
from specswap_host.systemd import Systemd, SystemdError, UnitState

PORT = 30001
MTIME_NS = 1_764_600_000_000_000_000
# What `tree_hash` says of a folder with one empty serve.py.
LAUNCHER_HASH = hashlib.sha256(b"serve.py\x000\x00").hexdigest()[:12]
CODES = {"exited": 1, "killed": 2}


class FakeClock(Clock):
    """Time passes in `sleep` only; `at` runs an action when its moment has come."""

    def __init__(self) -> None:
        self.now = 1000.0
        self._actions: list[tuple[float, Any]] = []

    def mono(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_764_600_000.0 + self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        due = [action for action in self._actions if action[0] <= self.now]
        self._actions = [action for action in self._actions if action[0] > self.now]
        for _, action in due:
            action()

    def after(self, seconds: float, action: Any) -> None:
        self._actions.append((self.now + seconds, action))


@dataclass
class Behaviour:
    """What a unit does after its start; seconds count from the start."""

    bind_s: float = 0.1
    load_s: float = 0.2
    exit_s: float | None = None
    exit_code: int = 1
    signal: int | None = None
    log: list[str] = field(default_factory=list)
    stop_s: float = 0.1
    ignores_kill: bool = False
    leftover_s: float = 0.0
    hang_completion: bool = False
    completion: Probe | None = None
    served: str | None = None
    argv: list[str] | None = None
    restart_at_s: float | None = None
    never_starts: bool = False
    health_dies_s: float | None = None
    texts: dict[str, str] = field(default_factory=dict)
    refuses: GenerateError | None = None
    accept_length: float | None = None
    late_accept_length: float | None = None
    tok_per_s: list[float] = field(default_factory=list)


@dataclass
class Running:
    invocation: str
    pid: int
    started: float
    behaviour: Behaviour
    argv: list[str]
    stop_at: float | None = None
    killed: bool = False


class World:
    """The host. `behaviours[unit]` is a list: one entry per start, the last one repeats."""

    def __init__(self, root: Path) -> None:
        self.clock = FakeClock()
        self.paths = Paths(root)
        self.behaviours: dict[str, list[Behaviour]] = {}
        self.units: dict[str, Running] = {}
        self.argvs: dict[str, list[str]] = {}
        self.enabled: set[str] = set()
        self.boot_target = "multi-user.target"  # what wants the enabled units
        self.drop_ins: dict[str, tuple[str, ...]] = {}
        self.foreign: list[Listener] = []
        self.calls: list[str] = []
        self.fail: dict[str, str] = {}
        self.verify_output = ""
        self._next = 0

    def context(self) -> Context:
        return Context(
            paths=self.paths,
            systemd=FakeSystemd(self),
            procfs=FakeProcFs(self),
            clock=self.clock,
            engine=lambda name: FakeEngine(self),
            threads=False,
        )

    def start(self, unit: str) -> None:
        behaviours = self.behaviours.get(unit) or [Behaviour()]
        behaviour = behaviours.pop(0) if len(behaviours) > 1 else behaviours[0]
        if behaviour.never_starts:
            return
        self._next += 1
        argv = behaviour.argv or self.argvs[unit]
        self.units[unit] = Running(f"inv{self._next}", 100 + self._next, self.clock.now, behaviour, argv)

    def age(self, unit: str) -> float:
        return self.clock.now - self.units[unit].started

    def alive(self, unit: str) -> bool:
        running = self.units.get(unit)
        if running is None:
            return False
        exited = running.behaviour.exit_s is not None and self.age(unit) >= running.behaviour.exit_s
        stopped = running.stop_at is not None and self.clock.now >= running.stop_at
        return not exited and not stopped

    def serving_units(self) -> list[str]:
        return [unit for unit in self.units if self.alive(unit)]


class FakeSystemd(Systemd):
    def __init__(self, world: World) -> None:
        self.world = world

    def _called(self, text: str) -> None:
        self.world.calls.append(text)
        for start, message in self.world.fail.items():
            if text.startswith(start):
                raise SystemdError(message)

    def show(self, *units: str) -> list[UnitState]:
        return [self._state(unit) for unit in units]

    def _state(self, unit: str) -> UnitState:
        world, running = self.world, self.world.units.get(unit)
        file_state = "enabled" if unit in world.enabled else "disabled"
        if running is None:
            return UnitState(unit, "loaded", "inactive", "dead", "success", unit_file_state=file_state)
        common: dict[str, Any] = {"invocation_id": running.invocation, "unit_file_state": file_state}
        if unit in world.enabled:
            common["wanted_by"] = (world.boot_target,)
        common["drop_ins"] = world.drop_ins.get(unit, ())
        behaviour = running.behaviour
        if not world.alive(unit):
            if running.stop_at is not None and world.clock.now >= running.stop_at:
                return UnitState(unit, "loaded", "inactive", "dead", "success", **common)
            code = "killed" if behaviour.signal else "exited"
            good = not behaviour.signal and behaviour.exit_code == 0
            return UnitState(
                unit,
                "loaded",
                "inactive" if good else "failed",
                "dead" if good else "failed",
                "success" if good else "exit-code",
                exec_main_code=CODES[code],
                exec_main_status=behaviour.signal or behaviour.exit_code,
                main_exit_mono=running.started + (behaviour.exit_s or 0.0),
                **common,
            )
        restarted = behaviour.restart_at_s is not None and world.age(unit) >= behaviour.restart_at_s
        if restarted:
            common["invocation_id"] = running.invocation + "-again"
        active = "deactivating" if running.stop_at is not None else "active"
        return UnitState(
            unit,
            "loaded",
            active,
            "running",
            "success",
            n_restarts=int(restarted),
            main_pid=running.pid,
            control_group=f"/system.slice/{unit}",
            **common,
        )

    def start(self, unit: str) -> None:
        self._called(f"start {unit}")
        self.world.start(unit)

    def stop(self, units: Sequence[str]) -> None:
        self._called("stop " + " ".join(units))
        for unit in units:
            running = self.world.units.get(unit)
            if running and running.stop_at is None:
                running.stop_at = self.world.clock.now + running.behaviour.stop_s

    def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        self._called(f"kill {unit}")
        running = self.world.units.get(unit)
        if running and not running.behaviour.ignores_kill:
            running.stop_at = self.world.clock.now

    def enable(self, unit: str) -> None:
        self._called(f"enable {unit}")
        self.world.enabled.add(unit)

    def disable(self, unit: str) -> None:
        self._called(f"disable {unit}")
        self.world.enabled.discard(unit)

    def daemon_reload(self) -> None:
        self._called("daemon-reload")

    def reset_failed(self, units: Sequence[str]) -> None:
        self._called("reset-failed")

    def verify(self, path: Path) -> str:
        return self.world.verify_output

    def log_lines(self, invocation_id: str, cursor: str = "", last: int = 400) -> tuple[list[str], str]:
        for running in self.world.units.values():
            if running.invocation == invocation_id:
                lines = running.behaviour.log
                return ([], cursor) if cursor == str(len(lines)) else (list(lines), str(len(lines)))
        return [], cursor

    def run_transient(self, unit: str, argv: Sequence[str], description: str, env: dict[str, str]) -> None:
        self._called(f"run_transient {unit} {' '.join(argv[-5:])}")


class FakeProcFs(ProcFs):
    def __init__(self, world: World) -> None:
        super().__init__("/nonexistent")
        self.world = world

    def listeners(self, port: int, bind: str | None = None) -> list[Listener]:
        found = list(self.world.foreign)
        for unit in self.world.serving_units():
            running = self.world.units[unit]
            if self.world.age(unit) >= running.behaviour.bind_s:
                found.append(Listener("127.0.0.1", port, running.pid, running.pid, f"/system.slice/{unit}", "server"))
        return found

    def members(self, control_group: str) -> list[int]:
        unit = control_group.rsplit("/", 1)[-1]
        running = self.world.units.get(unit)
        if running is None:
            return []
        gone = running.stop_at is not None and self.world.clock.now >= running.stop_at + running.behaviour.leftover_s
        return [] if gone else [running.pid]

    def cmdline(self, pid: int) -> list[str]:
        return next((list(running.argv) for running in self.world.units.values() if running.pid == pid), [])

    def describe(self, pid: int) -> str:
        return f"pid {pid} (server)"


class FakeEngine:
    name = "llamacpp"
    health_s = 2.0

    def __init__(self, world: World) -> None:
        self.world = world

    def _unit(self, service: Service) -> Running | None:
        serving = [unit for unit in self.world.serving_units() if unit == service.unit]
        return self.world.units[serving[0]] if serving else None

    def static_checks(self, service: Service) -> list[Finding]:
        return []

    def phase(self, line: str) -> str | None:
        return "loading model" if "loading" in line else None

    def health(self, service: Service, timeout_s: float) -> Probe:
        running = self._unit(service)
        if running is None:
            return Probe(False, "connection refused")
        age = self.world.clock.now - running.started
        dead = running.behaviour.health_dies_s is not None and age >= running.behaviour.health_dies_s
        status = 200 if age >= running.behaviour.load_s and not dead else 503
        return Probe(status == 200, f"HTTP {status}", {"status": status})

    def identity(self, service: Service, timeout_s: float) -> Probe:
        running = self._unit(service)
        if running is None:
            return Probe(False, "connection refused")
        name = running.behaviour.served or service.identity
        good = name == service.identity
        message = "serves" if good else f"served names [{name}] do not contain {service.identity}"
        return Probe(good, message, {"identity": name}, final=not good)

    def argv_matches(self, service: Service, live: list[str]) -> bool:
        return live == list(service.argv)

    def complete(self, service: Service, timeout_s: float) -> Probe:
        running = self._unit(service)
        if running is None or running.behaviour.hang_completion:
            return Probe(False, "no complete reply")
        good = Probe(True, "14 tokens", {"completion_tokens": 14, "finish_reason": "stop"})
        return running.behaviour.completion or good

    def generate(self, service: Service, ask: Ask, timeout_s: float) -> Answer:
        running = self._unit(service)
        if running is None:
            raise GenerateError(f"{ask.id}: connection refused")
        behaviour = running.behaviour
        if behaviour.refuses is not None:
            raise behaviour.refuses
        speeds = behaviour.tok_per_s
        speed = (speeds.pop(0) if len(speeds) > 1 else speeds[0]) if speeds and ask.raw else 100.0
        text = behaviour.texts.get(ask.id, f"The answer to {ask.id} is a sentence of its own.")
        late = ask.id == "longer" and behaviour.late_accept_length is not None
        length = behaviour.late_accept_length if late else behaviour.accept_length
        return Answer(text, 20, "stop", 20 / speed, length)


def service_dict(root: Path, variant: str, salt: str = "", **changes: Any) -> dict[str, Any]:
    """A service whose release, launcher and model really exist below `root`, so that the preflight passes."""
    release, model = root / "opt/envs/e-1", root / "opt/models/m"
    for folder in (release, model, root / "etc/systemd/system", root / "var/lib/specswap/smoke"):
        folder.mkdir(parents=True, exist_ok=True)
    content = {release / "lib.py": "x = 1\n", model / "m.gguf": "abc"}
    for path, text in content.items():
        path.write_text(text)
        os.utime(path, ns=(MTIME_NS, MTIME_NS))
    files = f"{hashlib.sha256(content[release / 'lib.py'].encode()).hexdigest()} 6 {MTIME_NS} lib.py\n"
    (release / "specswap-files.txt").write_text(files)
    stamp = {"release": "e-1", "lock_sha256": "", "python": "3.11"}
    stamp["files_sha256"] = hashlib.sha256(files.encode()).hexdigest()
    (release / "specswap-release.json").write_text(json.dumps(stamp))
    (model / "specswap-model.json").write_text(json.dumps({"sha256": "ab", "mtime_ns": MTIME_NS}))
    launcher = root / f"opt/engines/serve-{LAUNCHER_HASH}/serve.py"
    launcher.parent.mkdir(parents=True, exist_ok=True)
    launcher.write_text("")
    plan_hash = hashlib.sha256(f"{variant} {salt}".encode()).hexdigest()[:12]
    unit = f"llamacpp-{variant}-smoke.service"
    rivals = [f"llamacpp-{other}-smoke.service" for other in ("a", "b", "c") if other != variant]
    data: dict[str, Any] = {
        "schema": 1,
        "slot": {"name": "smoke", "port": PORT, "bind": "127.0.0.1", "gpus": []},
        "variant": variant,
        "engine": "llamacpp",
        "unit": unit,
        "environment": "e",
        "release": "e-1",
        "release_path": str(release),
        "launcher": {"name": launcher.parent.name, "path": str(launcher)},
        "models": {"target": {"name": "m", "path": str(model / "m.gguf"), "sha256": "ab", "size": 3}},
        "argv": ["/bin/sh", "serve", "--variant", variant + salt],
        "env": {},
        "served_model": "m",
        "identity": f"m@smoke.{variant}.{plan_hash}",
        "settings": {},
        "claims": {},
        "user": "root",
        "rivals": rivals,
        "budgets": {
            "load_s": 20,
            "stall_s": 5,
            "drain_s": 1,
            "stop_s": 2,
            "handover_s": 3,
            "gate_s": 6,
            "soak_s": 1.0,
        },
        "gate": GateSettings().to_dict(),
        "plan_hash": plan_hash,
        "unit_text": f"# specswap plan_hash={plan_hash}\n[Service]\nExecStart=/bin/sh {variant}{salt}\n",
    }
    return {**data, **changes}


def swap_plan(world: World, variant: str, job: str = "job", salt: str = "", **changes: Any) -> Plan:
    """A plan towards `variant`; also tells the world the command line that its unit will run."""
    data = service_dict(world.paths.root, variant, salt, **changes)
    world.argvs[data["unit"]] = data["argv"]
    return Plan.from_dict(
        {"schema": 1, "kind": "swap", "job": job, "slot": "smoke", "service": data, "controller": {"user": "ops"}}
    )
