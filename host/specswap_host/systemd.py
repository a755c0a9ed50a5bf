"""A thin, typed door to systemctl, journalctl, systemd-run and systemd-analyze."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "NRestarts",
    "MainPID",
    "ExecMainStatus",
    "ExecMainCode",
    "ExecMainExitTimestampMonotonic",
    "InvocationID",
    "ControlGroup",
    "NeedDaemonReload",
    "UnitFileState",
    "WantedBy",
    "Job",
    "FragmentPath",
    "DropInPaths",
)
# What the unit template's [Install] section names.
BOOT_TARGET = "multi-user.target"
# The gate's own drop-in, for the time of the gate; all others are an operator's or the distribution's.
GATE_DROP_IN = "90-specswap-gate.conf"


class SystemdError(Exception):
    """A systemd tool failed or did not answer; the message carries the command and its last words."""


@dataclass(frozen=True)
class UnitState:
    """What one `systemctl show` says about a unit; `main_exit_mono` is CLOCK_MONOTONIC seconds, 0 while it runs.

    `fragment` is the unit's file, `drop_ins` are files that change it beside our own: local changes by hand.
    """

    unit: str
    load_state: str = ""
    active_state: str = ""
    sub_state: str = ""
    result: str = ""
    n_restarts: int = 0
    main_pid: int = 0
    exec_main_status: int = 0
    exec_main_code: int = 0
    main_exit_mono: float = 0.0
    invocation_id: str = ""
    control_group: str = ""
    need_daemon_reload: bool = False
    unit_file_state: str = ""
    job: bool = False
    fragment: str = ""
    drop_ins: tuple[str, ...] = ()
    wanted_by: tuple[str, ...] = ()

    @property
    def starts_at_boot(self) -> bool:
        """Enabled, and by the target that a normal boot reaches: `enabled` alone may mean the rescue target."""
        return self.unit_file_state == "enabled" and (not self.wanted_by or BOOT_TARGET in self.wanted_by)

    def boot_text(self) -> str:
        """Why it does not start at boot, in words."""
        if self.unit_file_state == "enabled":
            return f"wanted by {', '.join(self.wanted_by)} only"
        return self.unit_file_state or "of unknown state"

    @property
    def running(self) -> bool:
        """The unit holds or is about to take or leave its place: it must be stopped before another starts."""
        return self.active_state in ("active", "activating", "reloading", "deactivating")

    def exit_text(self) -> str:
        """How the main process ended, in words."""
        if self.exec_main_code == 1:
            return f"exit code {self.exec_main_status}"
        if self.exec_main_code in (2, 3):
            return f"signal {_signal_name(self.exec_main_status)}"
        return f"result {self.result}" if self.result not in ("", "success") else f"state {self.active_state}"


def drop_in_hashes(state: UnitState) -> dict[str, str]:
    """File name -> 12 digits of the SHA-256 of its text: local changes that decide how a unit performs.

    By name, so that the same change to two units is the same.
    """
    found = {}
    for path in map(Path, state.drop_ins):
        try:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        except OSError as error:
            found[path.name] = f"unreadable: {error.strerror}"
    return found


def job_unit(slot: str) -> str:
    """The transient unit that a slot's jobs run in, one at a time."""
    return f"specswap-job-{slot}.service"


def _signal_name(number: int) -> str:
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


def _integer(text: str) -> int:
    return int(text) if text.isdigit() else 0


def parse_show(unit: str, text: str) -> UnitState:
    """Turn `Key=value` lines of `systemctl show` into a `UnitState`."""
    values = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return UnitState(
        unit=unit,
        load_state=values.get("LoadState", ""),
        active_state=values.get("ActiveState", ""),
        sub_state=values.get("SubState", ""),
        result=values.get("Result", ""),
        n_restarts=_integer(values.get("NRestarts", "0")),
        main_pid=_integer(values.get("MainPID", "0")),
        exec_main_status=_integer(values.get("ExecMainStatus", "0")),
        exec_main_code=_integer(values.get("ExecMainCode", "0")),
        main_exit_mono=_integer(values.get("ExecMainExitTimestampMonotonic", "0")) / 1e6,
        invocation_id=values.get("InvocationID", ""),
        control_group=values.get("ControlGroup", ""),
        need_daemon_reload=values.get("NeedDaemonReload", "no") == "yes",
        unit_file_state=values.get("UnitFileState", ""),
        wanted_by=tuple(values.get("WantedBy", "").split()),
        job=values.get("Job", "") not in ("", "0"),
        fragment=values.get("FragmentPath", ""),
        drop_ins=tuple(path for path in values.get("DropInPaths", "").split() if Path(path).name != GATE_DROP_IN),
    )


class Systemd:
    """The system manager of this host. Calls raise `SystemdError` unless they say otherwise."""

    def show(self, *units: str) -> list[UnitState]:
        """The states of `units`, in their order, from one call."""
        if not units:
            return []
        text = self._run("systemctl", "show", "--property=" + ",".join(_PROPERTIES), "--", *units)
        blocks = [block for block in text.split("\n\n") if block.strip()]
        if len(blocks) != len(units):
            raise SystemdError(f"systemctl show answered for {len(blocks)} of {len(units)} units")
        return [parse_show(unit, block) for unit, block in zip(units, blocks)]

    def start(self, unit: str) -> None:
        """Queue the start and return; another queued job for the unit is never replaced."""
        self._run("systemctl", "start", "--no-block", "--job-mode=fail", "--", unit)

    def stop(self, units: Sequence[str]) -> None:
        """Queue the stop of `units` and return."""
        if units:
            self._run("systemctl", "stop", "--no-block", "--", *units)

    def kill(self, unit: str, signal: str = "SIGKILL") -> None:
        """Send a signal to every process of the unit; a unit without processes is no error."""
        self._run("systemctl", "kill", "--signal=" + signal, "--", unit, check=False)

    def enable(self, unit: str) -> None:
        self._run("systemctl", "enable", "--quiet", "--no-reload", "--", unit)

    def disable(self, unit: str) -> None:
        """Disable at boot; a unit file that is gone is no error."""
        self._run("systemctl", "disable", "--quiet", "--no-reload", "--", unit, check=False)

    def daemon_reload(self) -> None:
        self._run("systemctl", "daemon-reload", timeout_s=90)

    def reset_failed(self, units: Sequence[str]) -> None:
        """Forget failures and start limits; units that are not loaded are no error."""
        if units:
            self._run("systemctl", "reset-failed", "--", *units, check=False)

    def verify(self, path: Path) -> str:
        """Output of `systemd-analyze verify` on a unit file (its exit status says less than its lines)."""
        return self._run("systemd-analyze", "verify", "--man=no", str(path), check=False, errors=True)

    def log_lines(self, invocation_id: str, cursor: str = "", last: int = 400) -> tuple[list[str], str]:
        """Log lines of one invocation after `cursor` (at most `last`), and the cursor for the next call."""
        if not invocation_id:
            return [], cursor
        selection = ["_SYSTEMD_INVOCATION_ID=" + invocation_id, "+", "INVOCATION_ID=" + invocation_id]
        options = ["--no-pager", "--quiet", "--all", "--output=cat", "--show-cursor", f"--lines={last}"]
        if cursor:
            options.append("--after-cursor=" + cursor)
        text = self._run("journalctl", *options, *selection, check=False)
        lines = text.splitlines()
        if lines and lines[-1].startswith("-- cursor: "):
            cursor = lines.pop()[len("-- cursor: ") :]
        return lines, cursor

    def run_transient(self, unit: str, argv: Sequence[str], description: str, env: dict[str, str]) -> None:
        """Start `argv` as the transient unit `unit`, which outlives the caller; refused when it already runs."""
        options = [
            "--quiet",
            "--collect",
            "--unit=" + unit,
            "--description=" + description,
            "--service-type=exec",
            # The job itself decides what SIGTERM means for its children; it needs time to give the slot back.
            "--property=KillMode=mixed",
            "--property=TimeoutStopSec=900",
        ]
        self._run("systemd-run", *options, *(f"--setenv={key}={value}" for key, value in env.items()), "--", *argv)

    def _run(self, *argv: str, check: bool = True, errors: bool = False, timeout_s: float = 30.0) -> str:
        environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_COLORS": "0", "SYSTEMD_PAGER": ""}
        try:
            done = subprocess.run(argv, capture_output=True, timeout=timeout_s, env=environment, check=False)
        except FileNotFoundError as error:
            raise SystemdError(f"{argv[0]}: not found; this host needs systemd >= 247") from error
        except subprocess.TimeoutExpired as error:
            raise SystemdError(f"{' '.join(argv[:2])}: no answer within {timeout_s:g} s") from error
        out = done.stdout.decode("utf-8", "replace")
        problem = done.stderr.decode("utf-8", "replace")
        if check and done.returncode != 0:
            words = " ".join(argv[:2]) + " " + argv[-1]
            raise SystemdError(f"{words}: exit code {done.returncode}: {problem.strip()[-500:]}")
        return out + problem if errors else out
