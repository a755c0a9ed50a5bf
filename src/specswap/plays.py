"""Runs plays through ansible-runner: live, readable lines, and counted results.

Ansible-runner is used instead of a bare `ansible-playbook` because it hands over every event as data: which task ran,
what it returned, how many changed.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from specswap.errors import ConsoleError
from specswap.paths import Paths, command_environment

#: How many logs of plays are kept in `.specswap/runs/`.
KEPT_LOGS = 20
#: Seconds that Ansible gets to end its workers after Ctrl-C.
GRACE_S = 10.0
#: Lines of one text that are shown; longer ones are cut at the front.
LONGEST_TEXT = 40
#: Lines of a text that a plug-in displays; whole tables are for those who run Ansible themselves, and in the log.
LONGEST_DISPLAY = 15
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_RESULT_EVENTS = {"runner_on_ok", "runner_on_failed", "runner_on_unreachable", "runner_on_skipped"}
#: Ansible's own task before every role; it says something only when it fails.
_ARGUMENT_CHECK = "Validating arguments against arg spec"
_DISPLAY_EVENTS = {"verbose", "warning", "system_warning", "deprecated", "error"}


@dataclass(frozen=True)
class HostStats:
    """One line of Ansible's recap: counts of tasks."""

    ok: int = 0
    changed: int = 0
    failed: int = 0
    unreachable: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class TaskResult:
    """What one task returned on one host."""

    host: str
    task: str
    action: str
    status: str
    result: Mapping[str, Any]


@dataclass(frozen=True)
class PlayResult:
    """One finished run of a playbook."""

    playbook: str
    ok: bool
    rc: int
    seconds: float
    stats: Mapping[str, HostStats]
    results: Sequence[TaskResult]
    log: Path

    @property
    def changed(self) -> int:
        """Tasks that reported a change, over all hosts."""
        return sum(stats.changed for stats in self.stats.values())

    @property
    def tasks(self) -> int:
        """Task runs that were not skipped, over all hosts."""
        return sum(result.status != "skipped" for result in self.results)


@dataclass
class EventLines:
    """Turns runner events into few, plain lines, and collects what they carry.

    Args:
        say: receives one line at a time.
    """

    say: Callable[[str], None]
    results: list[TaskResult] = field(default_factory=list)
    stats: dict[str, HostStats] = field(default_factory=dict)

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Handles one event; True keeps ansible-runner's own record of it."""
        kind = str(event.get("event", ""))
        data: Mapping[str, Any] = event.get("event_data") or {}
        text = str(event.get("stdout") or "")
        if kind == "playbook_on_task_start":
            if _ARGUMENT_CHECK not in _task_name(data):
                self.say(f"- {_shown(_task_name(data))}")
        elif kind == "playbook_on_handler_task_start":
            self.say(f"- {_shown(_task_name(data))}")
        elif kind == "runner_item_on_failed":
            self._failed(data, text)
        elif kind in _RESULT_EVENTS:
            self._result(kind, data, text)
        elif kind == "playbook_on_stats":
            self._recap(data)
        elif kind in _DISPLAY_EVENTS and (kind != "verbose" or text.count("\n") < LONGEST_DISPLAY):
            self.text(text)
        return True

    def _result(self, kind: str, data: Mapping[str, Any], text: str) -> None:
        result: Mapping[str, Any] = data.get("res") or {}
        host, status = str(data.get("host", "")), kind.removeprefix("runner_on_")
        action = str(data.get("resolved_action") or data.get("task_action") or "")
        self.results.append(TaskResult(host, _task_name(data), action, status, result))
        if status in {"failed", "unreachable"}:
            if data.get("ignore_errors"):
                return
            # The items of a loop have already said why, one by one.
            if not result.get("results"):
                self._failed(data, text, status)
        elif status == "ok" and action.rsplit(".", 1)[-1] == "debug" and isinstance(result.get("msg"), str):
            self.text(result["msg"], indent=f"  {host}: ")
        elif status == "ok" and result.get("changed"):
            self.say(f"  {host}: changed")

    def _failed(self, data: Mapping[str, Any], text: str, status: str = "failed") -> None:
        result: Mapping[str, Any] = data.get("res") or {}
        item = f", {result['_ansible_item_label']}" if "_ansible_item_label" in result else ""
        self.say(f"  {data.get('host', '?')}: {status.upper()}{item}")
        self.text(str(result.get("msg") or "") or text, indent="    ")

    def _recap(self, data: Mapping[str, Any]) -> None:
        names = {"ok": "ok", "changed": "changed", "failed": "failures", "unreachable": "dark", "skipped": "skipped"}
        hosts = sorted({host for key in names.values() for host in (data.get(key) or {})})
        for host in hosts:
            counts = {name: int((data.get(key) or {}).get(host, 0)) for name, key in names.items()}
            self.stats[host] = HostStats(**counts)
            self.say(f"{host}: " + ", ".join(f"{name}={count}" for name, count in counts.items()))

    def text(self, text: str, indent: str = "  ") -> None:
        """Says a text line by line, without colours and empty lines, and no more than its last `LONGEST_TEXT` lines."""
        lines = [line.rstrip() for line in _COLOUR.sub("", text).splitlines() if line.strip()]
        if len(lines) > LONGEST_TEXT:
            # A fault of Ansible or of a plug-in comes with its whole traceback: the end says most, the log has all.
            lines = ["...", *lines[-LONGEST_TEXT:]]
        for line in lines:
            self.say(indent + line)


def _shown(task: str) -> str:
    """`specswap.core.host_base : Install the toolkit` as `host_base: Install the toolkit`."""
    role, colon, name = task.partition(" : ")
    return f"{role.rsplit('.', 1)[-1]}: {name}" if colon else task


def _task_name(data: Mapping[str, Any]) -> str:
    return str(data.get("name") or data.get("task") or "?").strip()


class Player:
    """Runs playbooks of one clone.

    Args:
        paths: the clone.
        environment: additions to the process environment of every play.
    """

    def __init__(self, paths: Paths, environment: Mapping[str, str] | None = None) -> None:
        self._paths = paths
        self._environment = dict(environment or {})

    def __call__(
        self,
        playbook: str,
        *,
        inventories: Sequence[Path],
        limit: str | None = None,
        variables: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = lambda line: None,
        options: Sequence[str] = (),
    ) -> PlayResult:
        """Runs one playbook to its end; a failed play is a result, not an exception.

        Args:
            playbook: name of a root playbook, such as `site.yml`.
            inventories: passed as `-i`, in this order.
            limit: host pattern.
            variables: extra variables, passed as JSON so that lists and booleans keep their type.
            say: receives the readable lines while the play runs.
            options: more options for ansible-playbook, such as `--check`.

        Raises:
            KeyboardInterrupt: after Ctrl-C, when Ansible has ended.
            ConsoleError: an inventory is missing.
        """
        import ansible_runner  # type: ignore[import-untyped]  # costs 0.2 s: only when a play runs

        for inventory in inventories:
            if not inventory.exists():
                raise ConsoleError(f"inventory {inventory} is missing", "Bring the sandbox up: ./specswap demo")
        self._paths.runs.mkdir(parents=True, exist_ok=True)
        ident = f"{time.strftime('%Y%m%dT%H%M%S')}-{Path(playbook).stem}"
        log = self._paths.runs / f"{ident}.log"
        lines = EventLines(say)
        begin = time.monotonic()
        # ansible-runner keeps the whole process environment among its artifacts: they live in a private folder and go.
        private = Path(tempfile.mkdtemp(prefix="specswap-run-"))
        try:
            with _interruptible() as interrupted:
                runner = ansible_runner.run(
                    private_data_dir=str(private),
                    project_dir=str(self._paths.root),
                    playbook=playbook,
                    inventory=[str(inventory) for inventory in inventories],
                    limit=limit,
                    extravars=dict(variables) if variables else None,
                    envvars={**command_environment(self._paths), **self._environment},
                    settings={"pexpect_timeout": 0.5},
                    cmdline=" ".join(options) or None,
                    event_handler=lines,
                    cancel_callback=Cancel(interrupted.is_set),
                    ident="run",
                    quiet=True,
                )
            stdout = private / "artifacts" / "run" / "stdout"
            if stdout.exists():
                shutil.copyfile(stdout, log)
        finally:
            shutil.rmtree(private, ignore_errors=True)
            self._rotate()
        if interrupted.is_set():
            raise KeyboardInterrupt
        if not lines.stats and not lines.results and runner.rc != 0:
            # Ansible ended before the first task: an inventory, syntax or argument error, seen only in its output.
            lines.text(log.read_text(errors="replace") if log.exists() else "")
        return PlayResult(
            playbook, runner.rc == 0, int(runner.rc), time.monotonic() - begin, lines.stats, lines.results, log
        )

    def _rotate(self) -> None:
        for old in sorted(self._paths.runs.glob("*.log"))[:-KEPT_LOGS]:
            old.unlink(missing_ok=True)


class Cancel:
    """ansible-runner's question whether to cancel; the answer to a Ctrl-C is first an end in good order.

    ansible-runner kills Ansible's process group at once, but Ansible's workers live in groups of their own and would go
    on with their task. So Ansible itself gets the interrupt, ends its workers, and is killed only if it does not end.

    Args:
        wanted: whether the user has asked for the end.
        grace_s: seconds that Ansible gets before it is killed.
    """

    def __init__(self, wanted: Callable[[], bool], grace_s: float = GRACE_S) -> None:
        self._wanted = wanted
        self._grace_s = grace_s
        self._asked: float | None = None

    def __call__(self) -> bool:
        """True when Ansible is to be killed; sends it the interrupt before."""
        if not self._wanted():
            return False
        if self._asked is None:
            self._asked = time.monotonic()
            for pid in children("ansible-playbook"):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGINT)
        return time.monotonic() - self._asked > self._grace_s


def children(program: str, proc: Path = Path("/proc")) -> list[int]:
    """Our own direct children that run a program of that name."""
    found = []
    for listing in proc.glob(f"{os.getpid()}/task/*/children"):
        for pid in listing.read_text().split():
            with suppress(OSError):
                words = (proc / pid / "cmdline").read_bytes().split(b"\0")[:3]
                if any(Path(word.decode(errors="replace")).name == program for word in words):
                    found.append(int(pid))
    return found


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """Turns Ctrl-C and SIGTERM into an event while Ansible runs: it gets its own end instead of being orphaned."""
    event = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield event
        return

    def note(_number: int, _frame: FrameType | None) -> None:
        event.set()

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def inventory_variables(paths: Paths, inventories: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Variables of every host of the inventories, as Ansible merges them: `{host: {variable: value}}`.

    Raises:
        ConsoleError: Ansible refuses an inventory.
    """
    argv = [paths.tool("ansible-inventory"), "--list"]
    for inventory in inventories:
        argv += ["-i", str(inventory)]
    done = subprocess.run(
        argv, capture_output=True, text=True, cwd=paths.root, env=command_environment(paths), check=False
    )
    if done.returncode != 0:
        raise ConsoleError(
            f"ansible-inventory refuses {', '.join(map(str, inventories))}: {done.stderr.strip().splitlines()[-1:]}",
            "Correct the file that Ansible names, then try again.",
        )
    hostvars: dict[str, dict[str, Any]] = json.loads(done.stdout)["_meta"]["hostvars"]
    return hostvars
