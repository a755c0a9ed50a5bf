"""Visible progress: numbered steps with seconds, and a sign of life while a step is silent."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TextIO

#: Silence, in seconds, after which a step says that it still works.
SILENCE_S = 15.0


def seconds(value: float) -> str:
    """`3.2 s` below two minutes, `4 min 05 s` above."""
    if value < 120:
        return f"{value:.1f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s"


@dataclass
class StepRecord:
    """One finished step: its name, whether it held, and its seconds."""

    name: str
    ok: bool
    seconds: float


class Steps:
    """Prints `[2/6] name`, indented lines of the work, and `[2/6] name: done, 3.2 s`.

    Args:
        total: number of steps, for the `2/6`.
        out: where the lines go (stderr by default, so that stdout stays free for results).
        clock: monotonic seconds.
        silence_s: silence after which the current step reports that it is still at it; 0 switches that off.
    """

    def __init__(
        self,
        total: int,
        out: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
        silence_s: float = SILENCE_S,
    ) -> None:
        self.total = total
        self.records: list[StepRecord] = []
        self._out = out if out is not None else sys.stderr
        self._clock = clock
        self._silence_s = silence_s
        self._last_line = clock()
        self._lock = threading.Lock()
        self._begin = clock()

    @property
    def elapsed(self) -> float:
        """Seconds since these steps were set up."""
        return self._clock() - self._begin

    def say(self, line: str) -> None:
        """Prints one line of work below the current step."""
        self._print(f"      {line}" if line else "")

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Runs the block as the next step; an exception marks the step as failed and goes on up."""
        number = f"[{len(self.records) + 1}/{self.total}]"
        begin = self._clock()
        self._print(f"{number} {name}")
        stop = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(begin, stop), daemon=True)
        if self._silence_s > 0:
            watcher.start()
        ok, word = False, "FAILED"
        try:
            yield
            ok, word = True, "done"
        except KeyboardInterrupt:
            word = "interrupted"
            raise
        finally:
            stop.set()
            if watcher.is_alive():
                watcher.join()
            took = self._clock() - begin
            self.records.append(StepRecord(name, ok, took))
            self._print(f"{number} {name}: {word}, {seconds(took)}")

    def _watch(self, begin: float, stop: threading.Event) -> None:
        while not stop.wait(min(1.0, self._silence_s)):
            if self._clock() - self._last_line >= self._silence_s:
                self.say(f"... still at it, {seconds(self._clock() - begin)}")

    def _print(self, line: str) -> None:
        with self._lock:
            self._last_line = self._clock()
            print(line, file=self._out, flush=True)
