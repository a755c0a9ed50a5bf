"""Runs inside the sandbox host: heal it from whatever the last fault did, lay out the slot anew.

stdin: {"units": {name: text}, "registry": {...}, "files": {path: text or null}, "slot": name}. Nothing of specswap is
imported: what heals must not be what is tested.
"""

# Short and close to the system calls, as os and glob are.
# ruff: noqa: PTH116, PTH207, PTH208

from __future__ import annotations

import glob
import json
import os
import pwd
import shutil
import subprocess
import sys
import time
from pathlib import Path

SLOT = "smoke"
STATE = Path("/var/lib/specswap")
CACHE = Path("/var/cache/specswap")


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def unmount() -> None:
    for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
        target = line.split()[1]
        if target.startswith((str(STATE), str(CACHE), "/var/log/journal")):
            run("umount", "-l", target)


def kill_all(names: list[str]) -> None:
    patterns = ("llamacpp-*", "fault-*", "specswap-job-*")
    listed = run("systemctl", "list-units", "--all", "--plain", "--no-legend", *patterns)
    units = sorted({*names, *(line.split()[0] for line in listed.splitlines() if line.strip())})
    run("systemctl", "kill", "--signal=KILL", *units)
    run("systemctl", "stop", *units)
    run("systemctl", "reset-failed")
    user = pwd.getpwnam("specswap").pw_uid
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        left = [pid for pid in os.listdir("/proc") if pid.isdigit() and owner(pid) == user]
        if not left:
            return
        for pid in left:
            try:
                os.kill(int(pid), 9)
            except ProcessLookupError:
                continue
        time.sleep(0.02)


def owner(pid: str) -> int:
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def clear() -> None:
    for pattern in (
        "/etc/systemd/system/llamacpp-*",
        "/run/systemd/system/llamacpp-*",
        "/etc/systemd/system/multi-user.target.wants/llamacpp-*",
        "/var/lib/specswap-smoke",
        "/var/lib/specswap/*",
        "/var/cache/specswap/*",
        "/run/specswap-fault*",
    ):
        for name in glob.glob(pattern):
            path = Path(name)
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def write(name: str, text: str, mode: int) -> None:
    path = Path(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_symlink() or path.exists():
        path.unlink()
    path.write_text(text)
    path.chmod(mode)


def main() -> None:
    spec = json.load(sys.stdin)
    kill_all(list(spec["units"]))
    unmount()
    clear()
    for name, text in spec["files"].items():
        write(name, text, 0o755 if text.startswith("#!") else 0o644)
    for name, text in spec["units"].items():
        write(f"/etc/systemd/system/{name}", text, 0o644)
    write(f"/etc/specswap/slots/{SLOT}.json", json.dumps(spec["registry"]), 0o644)
    (STATE / SLOT).mkdir(parents=True, exist_ok=True)
    subprocess.run(["systemctl", "daemon-reload"], check=True)


main()
