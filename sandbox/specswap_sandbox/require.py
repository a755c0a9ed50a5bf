"""What a backend needs on the machine, how to install it, and which backend can work here."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

from .errors import SandboxError
from .rootfs import Progress
from .shell import run

BACKENDS = ("nspawn", "container")

#: Program -> Debian and Ubuntu package.
COMMON = {"mmdebstrap": "mmdebstrap", "ssh": "openssh-client", "ssh-keygen": "openssh-client"}
NSPAWN = {
    "systemd-nspawn": "systemd-container",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "mount": "mount",
}
#: Where administrators' programs are, also for users whose PATH lacks these folders.
SEARCH_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])


def which(program: str) -> str | None:
    """The path of a program, also in the folders of administrators."""
    return shutil.which(program, path=SEARCH_PATH)


def requirements(backend: str = "auto", *, has: Callable[[str], bool] | None = None) -> list[str]:
    """Debian packages that `backend` needs and this machine lacks. `has` says whether a program is there."""
    has = has or (lambda program: which(program) is not None)
    if backend == "auto":
        backend = "nspawn"
    if backend not in BACKENDS:
        raise SandboxError(f"backend {backend!r}: use auto, {' or '.join(BACKENDS)}")
    needed = COMMON | (NSPAWN if backend == "nspawn" else {"ip": "iproute2"})
    missing = {package for program, package in needed.items() if not has(program)}
    if backend == "container" and not (has("podman") or has("docker")):
        missing.add("podman")
    return sorted(missing)


def as_root(argv: list[str]) -> list[str]:
    """`argv` itself for root, else with `sudo -n` before it. Raises SandboxError when there is no way to root."""
    if os.geteuid() == 0:
        return argv
    if which("sudo") is None:
        raise SandboxError(
            "the sandbox makes network and mounts and needs root: run the command as root (sudo is not installed)"
        )
    if run(["sudo", "-n", "true"], check=False).returncode != 0:
        raise SandboxError(
            "the sandbox makes network and mounts and needs root: run `sudo -v` first, then the command again"
        )
    return ["sudo", "-n", *argv]


def install_requirements(progress: Progress, backend: str = "auto") -> list[str]:
    """Install what `requirements` lists with apt-get, as root or through sudo; returns what was installed.

    Package lists are fetched first: a fresh machine has none. Raises SandboxError without apt-get or on its failure.
    """
    missing = requirements(backend)
    if not missing:
        return []
    if which("apt-get") is None:
        raise SandboxError(f"not a Debian or Ubuntu machine: install the equivalents of {', '.join(missing)} by hand")
    for argv in (["apt-get", "update", "-q"], ["apt-get", "install", "-y", "-q", "--no-install-recommends", *missing]):
        progress(f"apt-get {argv[1]}{'' if argv[1] == 'update' else ': ' + ' '.join(missing)}")
        _apt(as_root(["env", "DEBIAN_FRONTEND=noninteractive", *argv]), progress)
    if still := requirements(backend):
        raise SandboxError(f"installed, but still not found: {', '.join(still)}; is /usr/bin in PATH?")
    return missing


def _apt(argv: list[str], progress: Progress) -> None:
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    lines: list[str] = []
    shown = time.monotonic()
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line.rstrip())
        if time.monotonic() - shown > 5.0:
            shown = time.monotonic()
            progress(f"  {line.rstrip()[:100]}")
    if process.wait() != 0:
        raise SandboxError("apt-get failed; its last lines:\n" + "\n".join(lines[-8:]))


def nspawn_obstacles() -> list[str]:
    """Why systemd-nspawn cannot work on this machine, packages aside; empty when it can. Needs root."""
    found = []
    filesystems = Path("/proc/filesystems").read_text(encoding="ascii").split()
    if "overlay" not in filesystems and run(["modprobe", "overlay"], check=False).returncode != 0:
        found.append("the kernel has no overlay file system")
    probe = run(["unshare", "--mount", "--net", "--pid", "--fork", "--uts", "--ipc", "true"], check=False)
    if probe.returncode != 0:
        detail = probe.stderr.strip().splitlines()
        found.append(f"namespaces are not allowed here ({detail[-1] if detail else 'unshare failed'})")
    return found


def container_engine() -> str | None:
    """`podman` or `docker`, whichever answers as root; None when neither does."""
    for engine in ("podman", "docker"):
        if which(engine) and run([engine, "info"], check=False, timeout_s=20.0).returncode == 0:
            return engine
    return None


def choose_backend(wanted: str) -> str:
    """The backend for `auto`, or `wanted` itself. Needs root. SandboxError says why none can work."""
    if wanted not in ("auto", *BACKENDS):
        raise SandboxError(f"backend {wanted!r}: use auto, {' or '.join(BACKENDS)}")
    reasons: list[str] = []
    for backend in BACKENDS if wanted == "auto" else (wanted,):
        missing = requirements(backend)
        if missing:
            reasons.append(f"{backend}: install {' '.join(missing)} (`python -m specswap_sandbox install`)")
            if wanted == "auto" and which("apt-get"):
                # A command away from the proven backend; the other one is for machines where it cannot work.
                break
        elif backend == "nspawn":
            if obstacles := nspawn_obstacles():
                reasons.append(f"nspawn: {'; '.join(obstacles)}")
            else:
                return backend
        elif container_engine() is None:
            reasons.append("container: neither podman nor docker answers; is its daemon started?")
        else:
            return backend
    raise SandboxError("no backend can make hosts on this machine:\n  " + "\n  ".join(reasons))
