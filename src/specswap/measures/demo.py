"""The demo as a newcomer and as a daily user meet it: seconds, memory, idempotence, and what Ansible adds to a swap."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from specswap.demo_tools import TAG_VARIABLE, demo_tools
from specswap.errors import ConsoleError
from specswap.measure import Row
from specswap.paths import Paths
from specswap.plays import Player, PlayResult

SUMMARY = "the demo cold and warm, a second site.yml, and the controller's share of a swap"
TAG = "msr"
HOST = "ct200"
REPEATS = 3
SWAPS = ("ngram", "baseline") * 2
#: Environment variables that point at caches; each gets an empty folder for the cold run.
CACHES = ("SPECSWAP_CACHE", "UV_CACHE_DIR", "PIP_CACHE_DIR")


@dataclass(frozen=True)
class Usage:
    """What one command cost: wall seconds, the resident memory of its largest process and of its whole tree."""

    seconds: float
    largest_mib: float
    tree_mib: float
    ok: bool
    output: str


def run(paths: Paths, say: Callable[[str], None]) -> list[Row]:
    """Takes all samples on a sandbox of its own, in a clone of its own."""
    folder = Path(tempfile.mkdtemp(prefix="specswap-measure-"))
    environment = {**os.environ, TAG_VARIABLE: TAG}
    environment.pop("UV_PROJECT_ENVIRONMENT", None)
    for name in CACHES:
        (folder / name).mkdir()
        environment[name] = str(folder / name)
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(paths.root), str(clone)], check=True)
    try:
        say("demo, cold: empty caches, no environment, no wheelhouse")
        cold = usage([str(clone / "specswap"), "demo"], clone, environment)
        _show(cold, say)
        rows = _demo_rows("cold", cold, "<= 360")
        if not cold.ok:
            return rows
        subprocess.run([str(clone / "specswap"), "demo", "--down"], cwd=clone, env=environment, check=True)
        say("demo, warm: caches, environment and wheelhouse are there, the host is not")
        warm = usage([str(clone / "specswap"), "demo"], clone, environment)
        _show(warm, say)
        rows += _demo_rows("warm", warm, "<= 120")
        if warm.ok:
            rows += _plays(clone, folder, say)
        return rows
    finally:
        if (clone / ".venv").exists():
            subprocess.run([str(clone / "specswap"), "demo", "--down"], cwd=clone, env=environment, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _show(cost: Usage, say: Callable[[str], None]) -> None:
    say(f"{'done' if cost.ok else 'FAILED'} after {cost.seconds:.1f} s")
    if not cost.ok:
        for line in cost.output.splitlines()[-15:]:
            say(f"  {line}")


def _demo_rows(kind: str, cost: Usage, aim: str) -> list[Row]:
    if not cost.ok:
        return [Row(f"demo, {kind}", "s", [], aim, reason="the demo failed")]
    return [
        Row(f"demo, {kind}", "s", [cost.seconds], aim),
        Row(f"demo, {kind}: largest process, resident", "MiB", [cost.largest_mib]),
        Row(f"demo, {kind}: peak of all processes, proportional", "MiB", [cost.tree_mib]),
    ]


def usage(argv: Sequence[str], cwd: Path, environment: Mapping[str, str]) -> Usage:
    """Runs a command and watches what it and its descendants cost.

    The largest process comes from the kernel (`ru_maxrss` of the command and of all that it waited for). The whole tree
    is sampled twice a second as proportional set size, so that memory shared by forks counts once; sandbox hosts detach
    from the command and are not part of it.
    """
    begin = time.monotonic()
    peak = 0.0
    with tempfile.TemporaryFile("w+") as output:
        process = subprocess.Popen(
            list(argv), cwd=cwd, env=dict(environment), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
        done = threading.Event()

        def watch() -> None:
            nonlocal peak
            while not done.wait(0.5):
                peak = max(peak, tree_mib(process.pid))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        _, status, cost = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        done.set()
        watcher.join()
        output.seek(0)
        text = output.read()
    return Usage(time.monotonic() - begin, cost.ru_maxrss / 1024, peak, process.returncode == 0, text)


def tree_mib(pid: int, proc: Path = Path("/proc")) -> float:
    """Proportional set size, in MiB, of a process and its descendants."""
    parents: dict[int, list[int]] = {}
    for folder in proc.glob("[0-9]*"):
        try:
            # The command name may hold blanks and brackets: the fields begin after its last bracket.
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            continue
        parents.setdefault(parent, []).append(int(folder.name))
    total, waiting = 0, [pid]
    while waiting:
        one = waiting.pop()
        waiting += parents.get(one, [])
        try:
            for line in (proc / str(one) / "smaps_rollup").read_text().splitlines():
                if line.startswith("Pss:"):
                    total += int(line.split()[1])
        except (OSError, ValueError):
            continue
    return total / 1024


def _plays(clone: Path, folder: Path, say: Callable[[str], None]) -> list[Row]:
    paths = Paths(clone)
    before = os.environ.get(TAG_VARIABLE)
    os.environ[TAG_VARIABLE] = TAG
    try:
        hosts = demo_tools(paths).hosts
    finally:
        if before is None:
            del os.environ[TAG_VARIABLE]
        else:
            os.environ[TAG_VARIABLE] = before
    inventories = [clone / "inventory", hosts.inventory]
    count = SshCount(folder)
    player = Player(paths, {"ANSIBLE_SSH_EXECUTABLE": str(count.wrapper)})

    def play(playbook: str, variables: Mapping[str, str] | None = None) -> PlayResult:
        result = player(playbook, inventories=inventories, limit=HOST, variables=variables)
        if not result.ok:
            raise ConsoleError(f"{playbook} failed while it was measured", f"Log: {result.log}")
        return result

    # The demo's own run already ended with site.yml and a comparison; one run more warms the connection.
    play("site.yml")
    runs, trips = [], []
    for _ in range(REPEATS):
        count.reset()
        runs.append(play("site.yml"))
        trips.append(float(count.trips()))
    say(f"site.yml again: {', '.join(f'{one.seconds:.1f} s' for one in runs)}")
    rows = [
        Row("second site.yml: changed", "count", [float(one.changed) for one in runs], "== 0"),
        Row("second site.yml", "s", [one.seconds for one in runs], "<= 10"),
        Row("second site.yml: tasks", "count", [float(one.tasks) for one in runs]),
        Row("second site.yml: SSH round trips", "count", trips),
    ]
    total, job = [], []
    for variant in SWAPS:
        result = play("swap.yml", {"variant": variant})
        total.append(result.seconds)
        job.append(job_seconds(result))
        say(f"swap to {variant}: {total[-1]:.1f} s, of these {job[-1]:.1f} s on the host")
    overhead = [all_of - host for all_of, host in zip(total, job, strict=True)]
    rows += [
        Row("swap: the host job's own seconds", "s", job),
        Row("swap: controller seconds beyond the host job", "s", overhead, "<= 4"),
    ]
    return rows


def job_seconds(result: PlayResult) -> float:
    """Seconds of the host's job, as the host itself took them.

    Raises:
        ConsoleError: no task of the play returned a swap that took place.
    """
    for task in result.results:
        if task.result.get("outcome") == "swapped":
            return float(task.result["seconds"])
    raise ConsoleError(f"{result.playbook} returned no swap", f"Log: {result.log}")


class SshCount:
    """Counts how often Ansible starts ssh, by a wrapper that adds one line per start."""

    def __init__(self, folder: Path) -> None:
        self.log = folder / "ssh.log"
        self.wrapper = folder / "counted-ssh"
        ssh = shutil.which("ssh") or "ssh"
        self.wrapper.write_text(
            f'#!/bin/sh\necho . >>{shlex.quote(str(self.log))}\nexec {shlex.quote(ssh)} "$@"\n', encoding="utf-8"
        )
        self.wrapper.chmod(0o755)

    def reset(self) -> None:
        """Starts to count afresh."""
        self.log.unlink(missing_ok=True)

    def trips(self) -> int:
        """Starts of ssh since the last reset."""
        return len(self.log.read_text().splitlines()) if self.log.exists() else 0
