"""What a host is, read in one call, and whether it can serve."""

from __future__ import annotations

import ctypes
import grp
import os
import platform
import pwd
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .procfs import ProcFs, unit_of

USER = "specswap"
_MIB = 1 << 20
_SYSTEMD_FLOOR = 247


def collect(slots: Sequence[Mapping[str, Any]], libraries: Iterable[str] = ()) -> dict[str, Any]:
    """Facts of this host: `slots` are dicts with name, port and bind. Reads only; what cannot be read is None.

    Keys: python {version, path}, systemd {version, state}, glibc, arch, kernel, os, virtualization, cpus, memory_mib
    {total, available}, disk_mib {path: free}, boot_id, user {exists, uid, shell, groups}, ports ({slot: {port, owners:
    [{pid, command, unit}]}}), libraries ({file name such as libgomp.so.1: whether it can be loaded}).
    """
    return {
        "python": {"version": platform.python_version(), "path": _system_python()},
        "systemd": {"version": _systemd_version(), "state": _systemd_state()},
        "glibc": _glibc(),
        "arch": platform.machine(),
        "kernel": platform.release(),
        "os": _os_name(),
        "virtualization": _said("systemd-detect-virt"),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_mib": _memory(),
        "disk_mib": {path: _free_mib(path) for path in ("/opt", "/var")},
        "boot_id": _read("/proc/sys/kernel/random/boot_id"),
        "user": _user(USER),
        "ports": {str(slot["name"]): _owners(int(slot["port"]), str(slot.get("bind", "127.0.0.1"))) for slot in slots},
        "libraries": {name: _loadable(name) for name in libraries},
    }


def judge(facts: Mapping[str, Any], wants: Mapping[str, Any]) -> list[dict[str, str]]:
    """What keeps a host with `facts` from serving ("error") or may do so ("warning"): {id, severity, message, fix}.

    `wants`: slots, python ("3.9"), glibc ("2.28"), disk_mib (free space in each of /opt and /var), libraries
    ({file name: the Debian package that brings it}). Pure.
    """
    findings: list[dict[str, str]] = []

    def add(id_: str, severity: str, message: str, fix: str) -> None:
        findings.append({"id": id_, "severity": severity, "message": message, "fix": fix})

    python = facts["python"]
    if _older(python["version"], wants.get("python", "3.9")):
        message = f"Python is {python['version']}, at least {wants.get('python', '3.9')} is needed."
        add("python_old", "error", message, "Install a newer python3, or set ansible_python_interpreter to one.")
    if python["path"] is None:
        add("python_missing", "error", "There is no /usr/bin/python3.", "Install it: apt-get install python3.")
    systemd = facts["systemd"]
    if systemd["version"] is None:
        add("systemd_missing", "error", "systemd does not run this host.", "Use a host whose PID 1 is systemd.")
    elif systemd["version"] < _SYSTEMD_FLOOR:
        message = f"systemd is {systemd['version']}, at least {_SYSTEMD_FLOOR} is needed."
        add("systemd_old", "error", message, "Use Debian 11, Ubuntu 22.04, RHEL 9 or newer.")
    elif systemd["state"] not in ("running", "degraded", "starting"):
        message = f"systemd says that the system is {systemd['state'] or 'of unknown state'}."
        add("systemd_state", "warning", message, "Look at systemctl is-system-running and systemctl --failed.")
    if facts["glibc"] is None:
        add("glibc_unknown", "error", "The C library is not glibc.", "Use a distribution with glibc for the wheels.")
    elif _older(facts["glibc"], wants.get("glibc", "2.28")):
        message = f"glibc is {facts['glibc']}, the wheels need {wants.get('glibc', '2.28')}."
        add("glibc_old", "error", message, "Use a newer distribution, or a lock with an older glibc floor.")
    if facts["arch"] != "x86_64":
        add("arch", "error", f"The machine is {facts['arch']}.", "Use x86_64: the locks hold wheels for it alone.")
    for path, free in sorted(facts["disk_mib"].items()):
        if free is not None and free < int(wants.get("disk_mib", 0)):
            message = f"{path} has {free} MiB free, {wants['disk_mib']} MiB are wanted."
            add("disk_space", "error", message, f"Make room in {path}.")
    for name, package in sorted(wants.get("libraries", {}).items()):
        if not facts["libraries"].get(name, False):
            message = f"The engine needs {name}, which cannot be loaded."
            add("library_missing", "error", message, f"Install it: apt-get install {package}.")
    for slot in wants.get("slots", ()):
        seen = facts["ports"].get(str(slot["name"]))
        for owner in seen["owners"] if seen else ():
            if not owner["unit"].endswith(f"-{slot['name']}.service"):
                who = (
                    f"process {owner['pid']} ({owner['command']})" if owner["pid"] else "a process that cannot be seen"
                )
                inside = f" of {owner['unit']}" if owner["unit"] else ""
                message = f"Port {seen['port']} of slot {slot['name']} belongs to {who}{inside}, which is not ours."
                add("port_foreign", "error", message, "Stop it, or give the slot another port.")
    return findings


def _older(version: str, floor: str) -> bool:
    return _numbers(version) < _numbers(floor)


def _numbers(version: str) -> tuple[int, ...]:
    parts = []
    for part in version.split("."):
        digits = "".join(character for character in part if character.isdigit())
        parts.append(int(digits) if digits else 0)
    return tuple(parts)


def _system_python() -> str | None:
    path = Path("/usr/bin/python3")
    return str(path.resolve()) if path.exists() else None


def _said(*words: str) -> str | None:
    """First line of a command's output, whatever its status; None when it cannot be run or says nothing."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=15, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip().split("\n")[0] or None


def _systemd_version() -> int | None:
    """The version, None unless systemd is PID 1."""
    if not Path("/run/systemd/system").is_dir():
        return None
    words = (_said("systemctl", "--version") or "").split()
    digits = "".join(character for character in words[1].split(".")[0] if character.isdigit()) if len(words) > 1 else ""
    return int(digits) if digits else None


def _systemd_state() -> str | None:
    return _said("systemctl", "is-system-running") if Path("/run/systemd/system").is_dir() else None


def _glibc() -> str | None:
    try:
        words = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()
    except (ValueError, OSError):
        return None
    return words[1] if len(words) == 2 and words[0] == "glibc" else None


def _os_name() -> str | None:
    for line in (_read("/etc/os-release") or "").split("\n"):
        if line.startswith("PRETTY_NAME="):
            return line.split("=", 1)[1].strip("\"'")
    return None


def _memory() -> dict[str, int | None]:
    kib = {}
    for line in (_read("/proc/meminfo") or "").split("\n"):
        name, _, rest = line.partition(":")
        if rest.split():
            kib[name] = int(rest.split()[0])
    return {
        key: kib[name] // 1024 if name in kib else None
        for key, name in (("total", "MemTotal"), ("available", "MemAvailable"))
    }


def _free_mib(path: str) -> int | None:
    try:
        return shutil.disk_usage(path).free // _MIB
    except OSError:
        return None


def _loadable(library: str) -> bool:
    try:
        ctypes.CDLL(library)
    except OSError:
        return False
    return True


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _user(name: str) -> dict[str, Any]:
    try:
        entry = pwd.getpwnam(name)
    except KeyError:
        return {"exists": False, "uid": None, "shell": None, "groups": []}
    groups = [group.gr_name for group in grp.getgrall() if name in group.gr_mem or group.gr_gid == entry.pw_gid]
    return {"exists": True, "uid": entry.pw_uid, "shell": entry.pw_shell, "groups": sorted(groups)}


def _owners(port: int, bind: str) -> dict[str, Any]:
    owners = [
        {"pid": listener.pid, "command": listener.command, "unit": unit_of(listener.cgroup)}
        for listener in ProcFs().listeners(port, bind)
    ]
    return {"port": port, "owners": owners}
