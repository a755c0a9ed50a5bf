"""Prove on this machine that a sandbox does what it promises: real hosts, every operation, and nothing left behind."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path

from . import network
from .core import Sandbox
from .errors import SandboxError
from .shell import run

STATE = Path("/run/specswap-sandbox-selftest")
TAG = "ssbtest"
#: Patience with slow machines; an ordinary one needs 1 to 3 s.
WAIT_S = 120.0
#: Allocates more than the unit's MemoryMax=; ends with 0 only when the limit is not in force.
GREEDY = "import sys; block = bytearray(200 * 2**20); block[::4096] = b'x' * len(block[::4096]); sys.exit(0)"


class SelfTest:
    """One run over two hosts. `failures` names the steps that failed; `run` leaves nothing, also on failure."""

    def __init__(self, sandbox: Sandbox, say: Callable[[str], None]) -> None:
        self.sandbox = sandbox
        self.say = say
        self.failures: list[str] = []
        # The second name is as long as a name can be: link names must not depend on it.
        self.first, self.second = "first", "second-" + "x" * 56

    def run(self) -> bool:
        """Run all steps; True when every one passed."""
        box = self.sandbox
        if left := box.leftovers():
            raise SandboxError(f"a selftest ran here and did not finish ({left[0]}); `selftest --clean` removes it")
        try:
            if self._step("up", lambda: box.up([self.first, self.second], self.say)) and self._step(
                "wait", self._running
            ):
                self._step("exec, SSH and sudo", self._commands)
                self._step("limits in force", self._limits)
                self._step("no way out", self._no_way_out)
                self._step("hosts reach each other", self._neighbours)
                self._step("up again changes nothing", self._up_again)
                self._step("reboot over SSH", self._reboot)
                self._step("crash and start", self._crash)
                self._step("power off and start", self._power_off)
                self._step("cut and heal", self._cut)
        finally:
            # The net is forgotten with the state: what must be gone has to be known before.
            net = box.address(self.first).rsplit(".", 1)[0] if self.first in box.hosts() else ""
            self._step("down", box.down)
            self._step("nothing left", lambda: self._nothing_left(net))
        return not self.failures

    def _step(self, name: str, action: Callable[[], object]) -> bool:
        started = time.monotonic()
        try:
            action()
        except (SandboxError, AssertionError) as error:
            self.failures.append(name)
            self.say(f"FAILED {name} ({time.monotonic() - started:.1f} s): {error}")
            return False
        self.say(f"ok     {name} ({time.monotonic() - started:.1f} s)")
        return True

    def _ssh(self, host: str, command: str, *, check: bool = True, timeout_s: float = 30.0) -> str:
        return run(
            [*self.sandbox.ssh_argv(host, connect_timeout_s=2), command], check=check, timeout_s=timeout_s
        ).stdout.strip()

    def _running(self) -> None:
        answers = self.sandbox.wait(WAIT_S)
        for host, answer in answers.items():
            if answer != "running":
                failed = self.sandbox.exec(host, ["systemctl", "--failed", "--no-legend", "--plain"]).stdout
                raise SandboxError(f"host {host} is {answer}: {failed.strip()}")
        _expect(set(answers), {self.first, self.second}, "hosts that answer")

    def _commands(self) -> None:
        _expect(self.sandbox.exec(self.first, ["id", "-u"]).stdout.strip(), "0", "user of exec")
        _expect(self.sandbox.exec(self.first, ["sh", "-c", "exit 7"]).returncode, 7, "code of exec")
        _expect(self._ssh(self.second, "hostname"), self.second, "hostname")
        _expect(self._ssh(self.first, "id -un; sudo -n id -un").split(), ["ops", "root"], "users over SSH")
        if not self._ssh(self.first, "systemd-analyze --version"):
            raise SandboxError("systemd-analyze does not answer")

    def _limits(self) -> None:
        words = ["systemd-run", "--quiet", "--wait", "--pipe", "-p", "MemoryMax=50M", "-p", "MemorySwapMax=0"]
        result = self.sandbox.exec(self.first, [*words, "/usr/bin/python3", "-c", GREEDY])
        if result.returncode == 0:
            raise SandboxError("MemoryMax=50M did not stop a process that took 200 MB")
        words = ["systemd-run", "--quiet", "--wait", "--pipe", "-p", "TasksMax=5", "/bin/sh", "-c"]
        result = self.sandbox.exec(self.first, [*words, "for i in 1 2 3 4 5 6 7 8; do sleep 1 & done; wait"])
        if "fork" not in result.stderr.lower():
            raise SandboxError("TasksMax=5 did not stop 8 processes")

    def _no_way_out(self) -> None:
        # An address for documentation: nothing is sent, the kernel is only asked for a route.
        result = self.sandbox.exec(self.first, ["ip", "route", "get", "198.51.100.1"])
        if result.returncode == 0:
            raise SandboxError(f"the host has a way out: {result.stdout.strip()}")

    def _neighbours(self) -> None:
        address = self.sandbox.address(self.second)
        probe = f"import socket; print(socket.create_connection(({address!r}, 22), 5).recv(4).decode())"
        _expect(self._ssh(self.first, f"python3 -c {shlex.quote(probe)}"), "SSH-", "greeting of the neighbour")

    def _boot(self) -> str:
        # The start of PID 1 tells boots apart with every backend; a container has the machine's boot id.
        return self._ssh(self.first, "systemctl show -p UserspaceTimestampMonotonic --value")

    def _up_again(self) -> None:
        before = self._boot()
        self.sandbox.up([self.first])
        _expect(self._boot(), before, "boot")

    def _comes_back(self, before: str) -> None:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            self.sandbox.wait(WAIT_S)
            try:
                if self._boot() != before:
                    return
            except SandboxError:
                pass
            time.sleep(0.2)
        raise SandboxError("the host did not boot again")

    def _reboot(self) -> None:
        before = self._boot()
        self._ssh(self.first, "sudo -n systemctl reboot", check=False)
        self._comes_back(before)

    def _crash(self) -> None:
        before = self._boot()
        self.sandbox.exec(self.first, ["logger", "written before the crash"])
        self.sandbox.exec(self.first, ["sh", "-c", "echo kept > /var/lib/kept; journalctl --sync"])
        self.sandbox.crash(self.first)
        _expect(self.sandbox.status()[self.first]["running"], False, "running after the crash")
        self.sandbox.start(self.first)
        self._comes_back(before)
        _expect(self._ssh(self.first, "cat /var/lib/kept"), "kept", "file from before the crash")
        # A container has the boot id of the machine: to journalctl its boots are one. An nspawn host gets new ones.
        boot = [] if self.sandbox.backend_in_use() == "container" else ["-b", "-1"]
        journal = self.sandbox.exec(self.first, ["journalctl", *boot, "--no-pager", "-q"]).stdout
        if "written before the crash" not in journal:
            raise SandboxError("the journal from before the crash is not readable")

    def _power_off(self) -> None:
        before = self._boot()
        self._ssh(self.first, "sudo -n systemctl poweroff", check=False)
        deadline = time.monotonic() + 30.0
        while self.sandbox.status()[self.first]["running"]:
            if time.monotonic() > deadline:
                raise SandboxError("the host did not power off within 30 s")
            time.sleep(0.1)
        self.sandbox.start(self.first)
        self._comes_back(before)

    def _cut(self) -> None:
        self.sandbox.cut(self.first)
        _expect(self.sandbox.status()[self.first]["connected"], False, "connected after the cut")
        try:
            _expect(self._ssh(self.first, "echo reached", check=False), "", "answer through the cut")
            _expect(self.sandbox.exec(self.first, ["echo", "inside"]).stdout.strip(), "inside", "exec during the cut")
            _expect(self._ssh(self.second, "echo reached"), "reached", "answer of the other host")
        finally:
            self.sandbox.heal(self.first)
        self.sandbox.wait(WAIT_S)

    def _nothing_left(self, net: str) -> None:
        left = self.sandbox.leftovers()
        left += [
            f"route {route.get('dst')}"
            for route in network.routes()
            if net and str(route.get("dst")).startswith(f"{net}.")
        ]
        if left:
            raise SandboxError(", ".join(left))


def _expect(found: object, wanted: object, what: str) -> None:
    if found != wanted:
        raise SandboxError(f"{what}: {found!r} instead of {wanted!r}")
