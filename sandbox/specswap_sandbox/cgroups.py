"""Control groups of the hosts, so that MemoryMax=, TasksMax= and CPUQuota= inside a host are in force.

Three kinds of machine:

* cgroup v1 or hybrid without systemd as PID 1: one folder per host in every hierarchy.
* cgroup v2 without systemd as PID 1: one folder per host below the root, controllers handed down.
* systemd as PID 1: nspawn runs as a transient unit with Delegate=yes (see `nspawn`); nothing to do here.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from .errors import SandboxError

ROOT = Path("/sys/fs/cgroup")
V1_CONTROLLERS = ("memory", "cpu", "cpuacct", "cpuset", "blkio", "pids", "devices", "freezer")
#: Hierarchies without controllers that a host's processes still must join, or systemd inside would see the machine's.
V1_OTHERS = ("systemd", "unified")
MEMORY_LIMIT = 4 * 2**30


def unified(root: Path = ROOT) -> bool:
    """Whether the machine has cgroup v2 alone."""
    return (root / "cgroup.controllers").exists()


def folders(group: str, host: str, root: Path = ROOT) -> list[Path]:
    """The host's folder in each hierarchy of the machine."""
    if unified(root):
        return [root / group / host]
    return [
        root / name / group / host for name in (*V1_OTHERS, *V1_CONTROLLERS) if (root / name / "cgroup.procs").exists()
    ]


def make(group: str, host: str, root: Path = ROOT) -> list[Path]:
    """Make the host's folders; returns their `cgroup.procs`, which the host's first process writes itself into."""
    made = folders(group, host, root)
    if unified(root):
        for level in (root, root / group):
            level.mkdir(exist_ok=True)
            available = (level / "cgroup.controllers").read_text(encoding="ascii").split()
            for controller in available:
                # A controller that cannot be handed down costs that limit alone.
                with contextlib.suppress(OSError):
                    (level / "cgroup.subtree_control").write_text(f"+{controller}", encoding="ascii")
    for folder in made:
        folder.mkdir(parents=True, exist_ok=True)
        hierarchy = folder.parent.parent
        if hierarchy.name == "cpuset" and not unified(root):
            # A new cpuset is empty and takes no process until it is filled, parents first.
            for part in (folder.parent, folder):
                for name in ("cpuset.cpus", "cpuset.mems"):
                    (part / name).write_text((hierarchy / name).read_text(encoding="ascii"), encoding="ascii")
        limit = folder / ("memory.max" if unified(root) else "memory.limit_in_bytes")
        if limit.exists():
            limit.write_text(str(MEMORY_LIMIT), encoding="ascii")
    return [folder / "cgroup.procs" for folder in made]


def nspawn_options(group: str, host: str, root: Path = ROOT) -> list[str]:
    """Options that keep a host's groups writable on v1: nspawn mounts them read-only, and limits would do nothing."""
    if unified(root):
        return []
    options = ["--tmpfs=/sys/fs/cgroup:mode=755"]
    for folder in folders(group, host, root):
        if folder.parent.parent.name in V1_CONTROLLERS:
            options.append(f"--bind={folder}:/sys/fs/cgroup/{folder.parent.parent.name}")
    return options


def existing(group: str, root: Path = ROOT) -> list[Path]:
    """The sandbox's folders that exist, one per hierarchy."""
    tops = [root / group, *(root / name / group for name in (*V1_OTHERS, *V1_CONTROLLERS))]
    return [top for top in tops if top.exists()]


def remove(group: str, root: Path = ROOT, *, timeout_s: float = 5.0) -> None:
    """Remove all folders of the sandbox, deepest first. The kernel lets go of ended processes a moment late."""
    deadline = time.monotonic() + timeout_s
    while left := existing(group, root):
        for top in left:
            for folder, _, _ in os.walk(top, topdown=False):
                with contextlib.suppress(OSError):
                    Path(folder).rmdir()
        if time.monotonic() > deadline:
            raise SandboxError(f"control group {left[0]} is still in use; `cat {left[0]}/*/cgroup.procs` shows by whom")
        time.sleep(0.05)
