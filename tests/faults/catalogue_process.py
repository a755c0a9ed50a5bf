"""Faults of the server process."""

from __future__ import annotations

import time
from collections.abc import Callable

from fault_case import Fault, Truth
from fault_host import FaultHost

NEVER = ("--bind-delay-s", "3600")
ROLLED_BACK = {"kind": "process", "outcome": "rolled_back", "noticed_by": "crash", "serves": "a"}


def _forced_restart(host: FaultHost) -> None:
    host.drop_in("b", "[Service]\nRestart=always\nRestartSec=0\n", "95-operator")


def _stays_down(host: FaultHost, _: Truth) -> None:
    """A crashed unit must not come back by systemd's own hand once the slot was given back."""
    time.sleep(1.5)
    now = host.truth()
    assert now.active == ["a"], f"later on: {now.words()}"


def _not_failed(variant: str) -> Callable[[FaultHost, Truth], None]:
    def check(_: FaultHost, after: Truth) -> None:
        now = after.unit(variant, "ActiveState")
        assert now == "inactive", f"{variant} is left {now}"

    return check


def _memory_limit(host: FaultHost) -> None:
    host.drop_in("b", "[Service]\nMemoryMax=48M\nMemorySwapMax=0\n")


def _start_limit(host: FaultHost) -> None:
    unit = host.unit("b")
    host.drop_in("b", "[Service]\nExecStart=\nExecStart=/bin/false\nRestart=on-failure\nRestartSec=0\n")
    host.sandbox.exec("h1", ["systemctl", "stop", unit])
    for _ in range(5):
        host.sandbox.exec("h1", ["systemctl", "start", "--no-block", unit])
    host.wait(lambda: "failed" in host.run("systemctl", "show", "-p", "ActiveState", unit), "the start limit")
    host.sh(f"rm -r /etc/systemd/system/{unit}.d; systemctl daemon-reload; systemctl start {host.unit('a')}")
    host.wait(lambda: host.truth().answers == "a", "a serves again")


def _foreign_cgroup(host: FaultHost) -> None:
    """Move the child that shares a's socket out of the unit, as a broken container runtime would."""
    unit = host.unit("a")
    host.sh(
        f"main=$(systemctl show --value -p MainPID {unit})\n"
        "child=$(pgrep -P $main | head -1)\n"
        "for top in /sys/fs/cgroup/systemd /sys/fs/cgroup/unified /sys/fs/cgroup; do\n"
        "  self=$(grep -E '^0::|name=systemd' /proc/1/cgroup | head -1 | cut -d: -f3)\n"
        "  [ -e $top/cgroup.procs ] && echo $child >$top/cgroup.procs 2>/dev/null || true\n"
        "done"
    )


def _dies_after_the_soak(host: FaultHost) -> None:
    host.hook(at="soak_passed", do="exec", argv=["systemctl", "kill", "--signal=SIGKILL", host.unit("b")])


def _rival_after_the_soak(host: FaultHost) -> None:
    host.hook(at="soak_passed", do="exec", argv=["systemctl", "start", host.unit("a")])


FAULTS = [
    Fault("crash_at_import", injected="the new server dies at once with ModuleNotFoundError", server=["--import-error"],
          says=["ModuleNotFoundError"], fast=True, **ROLLED_BACK),
    Fault("crash_after_2_5_s", injected="the new server raises 2.5 s after its start, before it listens",
          server=[*NEVER, "--crash-after", "2.5"], says=["out of memory"], fast=True, **ROLLED_BACK),
    Fault("crash_after_ready", injected="the new server answers, passes every tier and dies in the soak",
          server=["--crash-after", "2.5"], budgets={"soak_s": 4}, **ROLLED_BACK),
    Fault("crash_at_first_request", injected="the new server is healthy and dies at the first generation",
          server=["--crash-on-request"], **ROLLED_BACK),
    Fault("segfault", injected="the new server dies by SIGSEGV while it loads",
          server=[*NEVER, "--hang-crash-after", "0.6"], says=["SIGSEGV"], **ROLLED_BACK),
    Fault("exit_0_while_loading", injected="the new server ends with status 0 before it listens",
          server=[*NEVER, "--exit-after", "0.5"], **ROLLED_BACK),
    Fault("daemonizes", injected="the new server's main process ends, a child of it goes on serving",
          server=["--daemonize"], **ROLLED_BACK),
    Fault("crash_loop", injected="the new server crashes 0.4 s after every start; its unit has Restart=on-failure",
          server=[*NEVER, "--crash-after", "0.4"], after=_stays_down, **ROLLED_BACK),
    Fault("crash_loop_forced", injected="the same with an operator's drop-in Restart=always, RestartSec=0",
          server=[*NEVER, "--crash-after", "0.4"], inject=_forced_restart, after=_stays_down, fast=True, **ROLLED_BACK),
    Fault("start_limit_hit", "process", "the new unit has failed so often before that systemd refuses to start it",
          "swapped", "gate", "b", inject=_start_limit),
    Fault("oom_killed", injected="the new server needs more than the MemoryMax of its unit",
          server=["--eat-mb", "300"], inject=_memory_limit, **ROLLED_BACK),
    Fault("wedged_while_serving", "process", "the serving server hangs in every generation after its 40th",
          "swapped", "gate", "b", server_a=["--wedge-after", "40"],
          inject=lambda host: host.sh(
              "for i in $(seq 1 45); do curl -s -m 1 -d '{}' http://127.0.0.1:30001/v1/chat/completions >/dev/null"
              " || exit 0; done"), fast=True),
    Fault("old_ignores_sigterm", "process", "the old server ignores SIGTERM", "swapped", "stop budget", "b",
          server_a=["--ignore-term"], after=_not_failed("a"), fast=True),
    Fault("old_lingers", "process", "the old server takes 1 s to end", "swapped", "gate", "b",
          server_a=["--stop-s", "1"]),
    Fault("old_kills_itself", "process", "the old server ends by SIGKILL to itself when it is stopped", "swapped",
          "gate", "b", server_a=["--kill-on-term"], after=_not_failed("a"), fast=True),
    Fault("new_ignores_sigterm", "process", "the new server is the wrong one and ignores SIGTERM on the way back",
          "rolled_back", "tier 3", "a", server=["--wrong-model", "--ignore-term"]),
    Fault("old_has_escaped_child", "process",
          "the old server leaves a child in its own session, deaf to SIGTERM, with the socket", "swapped",
          "gate", "b", server_a=["--escape"]),
    Fault("new_has_escaped_child", "process", "a server with such a child dies in the soak", "rolled_back", "crash",
          "a", server=["--escape", "--crash-after", "1.5"], budgets={"soak_s": 3}),
    Fault("child_in_foreign_cgroup", "process",
          "such a child of the old server was moved out of the unit's cgroup and shares the port", "refused",
          "preflight: port_foreign", "a", untouched=True, server_a=["--escape"], inject=_foreign_cgroup, clean=False,
          agrees=False),
    Fault("old_cannot_come_back", "process", "the new server crashes, and the old one crashes at its next start",
          "rollback_failed", "crash", None, committed="a", server=["--import-error"], server_a=["--crash-again"],
          says=["And the way back failed"], fast=True),
    Fault("first_swap_crashes", "process", "the very first server of the slot crashes", "rolled_back", "crash", None,
          server=["--import-error"], start=False, says=["the slot is empty"]),
    Fault("dies_after_soak", "process", "the new server passes the soak and is killed before the end is told",
          "rolled_back", "tier 0", "a", inject=_dies_after_the_soak, says=["right after the soak"], fast=True),
    Fault("rival_after_soak", "process", "somebody starts the old unit again in that very moment", "rolled_back",
          "tier 0", "a", inject=_rival_after_the_soak, says=["right after the soak"]),
]  # fmt: skip
