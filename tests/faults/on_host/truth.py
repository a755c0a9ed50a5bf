"""Runs inside the sandbox host: what is true there, by systemctl, ss, /proc, files and real requests.

stdin: {"units": [...], "port": 30001, "identities": {variant: name}, "files": [glob, ...]}; stdout: one JSON object.
Nothing of specswap is imported: it is what the reports of specswap are compared with.
"""

# Short and close to the system calls, as os and glob are.
# ruff: noqa: PTH113, PTH114, PTH115, PTH207

from __future__ import annotations

import glob
import hashlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

PROPERTIES = ("ActiveState", "SubState", "InvocationID", "UnitFileState", "NeedDaemonReload", "NRestarts", "MainPID")


def run(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def units(names: list[str]) -> dict[str, dict[str, str]]:
    found = {}
    text = run("systemctl", "show", "--property=" + ",".join(PROPERTIES), *names)
    for name, block in zip(names, text.strip().split("\n\n"), strict=True):
        found[name] = dict(line.split("=", 1) for line in block.splitlines() if "=" in line)
    return found


def unit_of_process(pid: int) -> str:
    """The unit that a process belongs to, from /proc; empty for one of none."""
    try:
        text = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
    named = re.findall(r"([^/\n]+\.(?:service|scope))", text)
    return named[-1] if named else ""


def listeners(port: int) -> list[dict[str, Any]]:
    found = []
    for line in run("ss", "-H", "-l", "-t", "-n", "-p", "sport", "=", f":{port}").splitlines():
        for pid in sorted({int(number) for number in re.findall(r"pid=(\d+)", line)}):
            found.append({"address": line.split()[3], "pid": pid, "unit": unit_of_process(pid)})
    return found


def ask(port: int, path: str, body: dict[str, Any] | None = None, timeout_s: float = 2.0) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"} if data else {}
    )
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=timeout_s) as reply:
            return json.loads(reply.read())
    except (OSError, ValueError):
        return None


def answered(port: int, identities: dict[str, str]) -> dict[str, Any]:
    listing = ask(port, "/v1/models")
    names = [entry.get("id") for entry in listing.get("data", [])] if isinstance(listing, dict) else []
    by = next((variant for variant, name in identities.items() if name in names), None)
    text = None
    if by is not None:
        message = [{"role": "user", "content": "Who are you?"}]
        reply = ask(port, "/v1/chat/completions", {"model": identities[by], "messages": message, "max_tokens": 8})
        if isinstance(reply, dict) and reply.get("model") == identities[by]:
            text = reply["choices"][0]["message"]["content"]
    return {"by": by, "names": names, "generates": bool(text)}


def fingerprints(patterns: list[str]) -> dict[str, str]:
    found = {}
    for pattern in patterns:
        for name in sorted(glob.glob(pattern, recursive=True)):
            if os.path.isfile(name):
                found[name] = hashlib.sha256(Path(name).read_bytes()).hexdigest()[:16]
            elif os.path.islink(name):
                found[name] = "-> " + os.readlink(name)
    return found


def text_of(name: str) -> str | None:
    try:
        return Path(name).read_text()
    except OSError:
        return None


def processes() -> list[str]:
    """Processes of the services' user, each with its unit."""
    found = []
    for line in run("ps", "-o", "pid=,stat=,args=", "-u", "specswap").splitlines():
        pid, stat, args = line.split(None, 2)
        if not stat.startswith("Z"):
            found.append(f"{unit_of_process(int(pid))}: {args[:80]}")
    return found


def main() -> None:
    spec = json.load(sys.stdin)
    state = text_of("/var/lib/specswap/smoke/state.json")
    try:
        parsed = json.loads(state) if state else None
    except ValueError:
        parsed = {"unreadable": True}
    print(
        json.dumps(
            {
                "units": units(spec["units"]),
                "job_unit": run("systemctl", "show", "--value", "-p", "ActiveState", "specswap-job-smoke").strip(),
                "listeners": listeners(spec["port"]),
                "answer": answered(spec["port"], spec["identities"]),
                "state": parsed,
                "files": fingerprints(spec["files"]),
                "gate_drop_ins": glob.glob("/run/systemd/system/llamacpp-*.d/*"),
                "processes": processes(),
                "boot": text_of("/proc/sys/kernel/random/boot_id"),
                "journal": text_of("/var/lib/specswap/smoke/journal.jsonl"),
            }
        )
    )


main()
