"""What a job touches the system through. Tests replace these objects, nothing else."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from .engines import Engine, get_engine
from .gpus import Gpus
from .leftovers import sweep_shm
from .procfs import ProcFs
from .systemd import GATE_DROP_IN, Systemd

T = TypeVar("T")


class Interrupted(Exception):
    """The job was asked to end (SIGTERM, SIGINT)."""


@dataclass(frozen=True)
class Paths:
    """Where things lie on a host; `root` differs from `/` in tests only."""

    root: Path = Path("/")

    @property
    def units_dir(self) -> Path:
        return self.root / "etc/systemd/system"

    @property
    def registry_dir(self) -> Path:
        return self.root / "etc/specswap/slots"

    @property
    def state_dir(self) -> Path:
        return self.root / "var/lib/specswap"

    def unit(self, unit: str) -> Path:
        return self.units_dir / unit

    def gate_drop_in(self, unit: str) -> Path:
        """Runtime drop-in of the gate: below /run, so that a reboot removes it."""
        return self.root / "run/systemd/system" / f"{unit}.d" / GATE_DROP_IN

    def slot_dir(self, slot: str) -> Path:
        return self.state_dir / slot

    def journal(self, slot: str) -> Path:
        return self.slot_dir(slot) / "journal.jsonl"

    def state(self, slot: str) -> Path:
        return self.slot_dir(slot) / "state.json"

    def lock(self, slot: str) -> Path:
        return self.slot_dir(slot) / "lock"

    def plan(self, slot: str, job: str) -> Path:
        return self.slot_dir(slot) / "jobs" / job / "plan.json"

    def record(self, slot: str) -> Path:
        """What the slot's variants have measured here: see `history`."""
        return self.slot_dir(slot) / "record.json"

    @property
    def goldens(self) -> Path:
        """Greedy texts per target model and release: see `golden`."""
        return self.state_dir / "goldens"

    def registry(self, slot: str) -> Path:
        return self.registry_dir / f"{slot}.json"


class Clock:
    """Seconds: `mono` counts on (CLOCK_MONOTONIC), `wall` is Unix time."""

    def mono(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Pending(Generic[T]):
    """A call that runs beside the loop that watches the unit."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._value: list[T] = []
        self._error: BaseException | None = None
        self._done = threading.Event()

    def work(self) -> None:
        try:
            self._value.append(self._call())
        except BaseException as error:
            self._error = error
        self._done.set()

    def done(self) -> bool:
        return self._done.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait at most `seconds` for the call; True when it is done."""
        return self._done.wait(seconds)

    def result(self) -> T:
        """The value of a call that is done; raises what the call raised."""
        if self._error is not None:
            raise self._error
        return self._value[0]


def in_thread(call: Callable[[], T]) -> Pending[T]:
    """Start `call` on a daemon thread: a hung server can then hide nothing and hold nobody back."""
    pending = Pending(call)
    threading.Thread(target=pending.work, daemon=True).start()
    return pending


def inline(call: Callable[[], T]) -> Pending[T]:
    """Run `call` at once; for tests on a simulated clock."""
    pending = Pending(call)
    pending.work()
    return pending


@dataclass
class Context:
    """The system as a job sees it. `cancel` is set by the signal handler of the job."""

    paths: Paths = field(default_factory=Paths)
    systemd: Systemd = field(default_factory=Systemd)
    procfs: ProcFs = field(default_factory=ProcFs)
    clock: Clock = field(default_factory=Clock)
    engine: Callable[[str], Engine] = get_engine
    gpus: Gpus = field(default_factory=Gpus)
    sweep: Callable[[str], list[str]] = sweep_shm
    cancel: threading.Event = field(default_factory=threading.Event)
    threads: bool = True

    def background(self, call: Callable[[], T]) -> Pending[T]:
        return in_thread(call) if self.threads else inline(call)
