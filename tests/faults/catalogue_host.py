"""Faults of the host around the server. The machine's clock is never set: it jumps inside the job's process alone."""

from __future__ import annotations

from collections.abc import Callable

from fault_case import Fault, Told, Truth
from fault_host import SLOT, STATE_DIR, FaultHost

REFUSED = {"kind": "host", "outcome": "refused", "serves": "a", "untouched": True}
#: Both variants start from the same files, and `status` says that the serving one would not start again either.
SHARED_FILES = {**REFUSED, "agrees": False}
CACHE_B = f"/var/cache/specswap/{SLOT}/b"


def _small_state(host: FaultHost, options: str = "size=24m") -> None:
    """The slot's state on a small file system of its own."""
    host.sh(
        f"cp -a {STATE_DIR} /run/specswap-fault-state && mount -t tmpfs -o {options},mode=755 tmpfs {STATE_DIR}"
        f" && cp -a /run/specswap-fault-state/. {STATE_DIR}/"
    )


def _never_restarted(host: FaultHost, after: Truth) -> None:
    starts = [event for event in after.events if event["event"] == "start_requested"]
    assert len(starts) == 1, "enabling it at boot restarted the server"


def _damaged_golden(host: FaultHost) -> None:
    script = (
        "import json, pathlib\n"
        "for path in pathlib.Path('/var/lib/specswap/goldens').glob('*.json'):\n"
        "    kept = json.loads(path.read_text()); kept['texts'] = dict.fromkeys(kept['texts'], 'spoiled')\n"
        "    path.write_text(json.dumps(kept)); print(path)\n"
    )
    assert host.run("python3", "-c", script).strip(), "there is no golden to damage"


def _canary_told(host: FaultHost, after: Truth) -> None:
    back = next(event["detail"] for event in reversed(after.events) if event["event"] == "rolled_back")
    assert any("tier 5 canary" in told for told in back["told"]), f"the way back does not tell its canary: {back}"
    proven = after.data["state"]["active"]["tiers"]
    assert 5 not in proven, f"state.json claims the tiers {proven}"


def _user_locks(host: FaultHost) -> None:
    script = f"for file in {STATE_DIR}/*; do [ -f $file ] && [ -r $file ] && flock $file sleep 60 & done; wait"
    host.run("systemd-run", "--quiet", "--collect", "--unit=fault-foreigner", "--uid=nobody", "sh", "-c", script)
    host.wait(lambda: "flock" in host.run("ps", "-u", "nobody", "-o", "comm="), "the user's locks")


def _state_full(host: FaultHost) -> None:
    _small_state(host)
    host.sh(f"cat /dev/zero >{STATE_DIR}/filler 2>/dev/null || true")


def _state_nearly_full(host: FaultHost) -> None:
    _small_state(host)
    host.sh(f"dd if=/dev/zero of={STATE_DIR}/filler bs=1M count=15 2>/dev/null")


def _state_without_inodes(host: FaultHost) -> None:
    _small_state(host, "size=64m,nr_inodes=40")
    host.sh(f"i=0; while touch {STATE_DIR}/f$i 2>/dev/null; do i=$((i+1)); done")


def _state_fills_up(event: str) -> Callable[[FaultHost], None]:
    def inject(host: FaultHost) -> None:
        _small_state(host)
        script = f"cat /dev/zero >{STATE_DIR}/filler 2>/dev/null; true"
        host.hook(at=event, do="exec", argv=["sh", "-c", script])

    return inject


def _after_space(variant: str) -> Callable[[FaultHost], Told]:
    """The job tells its end on the full disk; after space was made the next command finds all as before."""

    def act(host: FaultHost) -> Told:
        first = host.swap("b")
        host.wait(lambda: host.truth().data["job_unit"] != "active", "the job's end", 30)
        now = host.truth()
        assert now.answers == variant, f"with the disk full: {now.words()}"
        host.unhook()
        host.sh(f"rm {STATE_DIR}/filler")
        second = host.swap(variant)
        assert second.outcome == "noop", f"the next command: {second.outcome}: {second.cause[-400:]}"
        return first

    return act


def _logs_full(host: FaultHost) -> None:
    host.sh(
        "mkdir -p /var/log/journal && mount -t tmpfs -o size=8m tmpfs /var/log/journal"
        " && (cat /dev/zero >/var/log/journal/filler 2>/dev/null || true)"
        " && systemctl restart systemd-journald && journalctl --flush"
    )


def _cache_full(host: FaultHost) -> None:
    host.sh(f"mkdir -p {CACHE_B} && mount -t tmpfs -o size=2m tmpfs {CACHE_B}")


def _read_only_state(host: FaultHost) -> None:
    host.sh(f"mount --bind {STATE_DIR} {STATE_DIR} && mount -o remount,bind,ro {STATE_DIR}")


def _edit_unit(variant: str, reload: bool) -> Callable[[FaultHost], None]:
    def inject(host: FaultHost) -> None:
        path = f"/etc/systemd/system/{host.unit(variant)}"
        host.sh(f"sed -i 's/^LimitCORE=0/LimitCORE=infinity/' {path}" + ("; systemctl daemon-reload" if reload else ""))

    return inject


def _unit_is_ours(variant: str) -> Callable[[FaultHost, Truth], None]:
    def check(host: FaultHost, after: Truth) -> None:
        text = host.run("cat", f"/etc/systemd/system/{host.unit(variant)}")
        assert text == host.services[variant]["unit_text"], f"the unit of {variant} is not the committed one"
        assert after.unit(variant, "NeedDaemonReload") == "no", f"systemd does not know the unit of {variant} as it is"

    return check


def _mask(host: FaultHost) -> None:
    path = f"/etc/systemd/system/{host.unit('b')}"
    host.sh(f"rm {path}; ln -s /dev/null {path}; systemctl daemon-reload")


def _jump(event: str, seconds: float) -> Callable[[FaultHost], None]:
    def inject(host: FaultHost) -> None:
        host.hook(at=event, wall_jump_s=seconds)

    return inject


def _sane_times(_: FaultHost, after: Truth) -> None:
    """Durations come from the monotonic clock: a jump of the wall clock must not be in them."""
    events = after.events
    monos = [event["t_mono"] for event in events]
    assert monos == sorted(monos), "t_mono runs backwards"
    end = events[-1]["detail"]
    assert 0 <= end["seconds"] < 60 and 0 <= (end["downtime_s"] or 0) < 60, f"durations of the end: {end}"
    walls = [event["t_wall"] for event in events]
    assert max(walls) - min(walls) > 3000, "the wall clock did not jump: the fault was not there"


def _port_taken(host: FaultHost) -> None:
    host.run("systemctl", "stop", host.unit("a"))
    host.foreigner("--alias", "somebody")


def _port_taken_v6(host: FaultHost) -> None:
    program = "import socket,time; s=socket.socket(socket.AF_INET6); s.bind(('::1',30001)); s.listen(); time.sleep(600)"
    host.run("systemd-run", "--quiet", "--collect", "--unit=fault-foreigner", "python3", "-c", program)
    host.wait(lambda: "::1" in host.run("ss", "-Hltn", "sport = :30001"), "the foreigner")


def _swap_a(host: FaultHost) -> Told:
    return host.swap("a")


def _both(host: FaultHost) -> None:
    """Somebody started b by hand without its Conflicts=, beside a; b cannot bind and waits."""
    host.drop_in("b", "[Unit]\nConflicts=\n[Service]\nExecStart=\nExecStart=/bin/sleep 600\n")
    unit = host.unit("b")
    host.sh(f"cd /etc/systemd/system; sed -i /^Conflicts=/d {unit} {host.unit('a')}; systemctl daemon-reload")
    host.sh(f"systemctl start {unit}; rm -r /etc/systemd/system/{unit}.d; systemctl daemon-reload")


def _started_by_hand(host: FaultHost) -> None:
    host.run("systemctl", "start", host.unit("b"))
    host.wait(lambda: host.truth().answers == "b", "b by hand")


def _service_file(key: str, script: str) -> Callable[[FaultHost], None]:
    def inject(host: FaultHost) -> None:
        one = host.services["b"]
        value = {"release": one["release_path"], "model": one["models"]["target"]["path"],
                 "launcher": one["launcher"]["path"], "python": one["argv"][0]}[key]  # fmt: skip
        host._installed.clear()
        host.sh(script.format(value))

    return inject


def _remove_added(host: FaultHost, _: Truth) -> None:
    """Laying the slot out anew writes files, it removes none of a release."""
    host.run("rm", f"{host.services['b']['release_path']}/added.py")


FAULTS = [
    Fault("state_disk_full", injected="no byte is free where state and journal lie", inject=_state_full,
          noticed_by="journal", says=["free"], fast=True, **REFUSED),
    Fault("state_disk_nearly_full", injected="9 MiB are free there, 16 are wanted", inject=_state_nearly_full,
          noticed_by="preflight: disk_full", **REFUSED),
    Fault("state_no_inodes", injected="no inodes are left there", inject=_state_without_inodes, noticed_by="journal",
          **REFUSED),
    Fault("disk_fills_before_start", "host", "the disk under the state fills up after the old server was stopped",
          "rolled_back", "journal", "a", inject=_state_fills_up("handover_proven"), act=_after_space("a")),
    Fault("disk_fills_before_commit", "host", "it fills up after the new server has passed the soak", "rolled_back",
          "state", "a", inject=_state_fills_up("soak_passed"), act=_after_space("a")),
    Fault("read_only_state", injected="the state's file system is read-only", inject=_read_only_state,
          noticed_by="journal", fast=True, **REFUSED),
    Fault("log_disk_full", "host", "no byte is free for systemd's journal", "swapped", "gate", "b", inject=_logs_full),
    Fault("log_disk_full_crash", "host", "the same, and the new server crashes", "rolled_back", "crash", "a",
          server=["--import-error"], inject=_logs_full),
    Fault("cache_disk_full", "host", "the new server fills its cache and finds no space", "rolled_back", "crash", "a",
          server=["--cache-file", "kernels", "--cache-mb", "8"], inject=_cache_full, says=["No space left"]),
    Fault("cache_is_a_file", "host", "a file lies where the new unit's cache folder belongs", "rolled_back", "crash",
          "a", inject=lambda host: host.sh(f"touch {CACHE_B}")),
    Fault("cache_belongs_to_root", "host", "the new server's cache belongs to root (systemd hands it over)", "swapped",
          "gate", "b", server=["--cache-file", "kernels/k"],
          inject=lambda host: host.sh(f"mkdir -p {CACHE_B}/kernels && chmod 700 {CACHE_B} {CACHE_B}/kernels")),
    Fault("cache_without_permission", "host", "a folder in the new server's cache has lost its permissions",
          "rolled_back", "crash", "a", server=["--cache-file", "kernels/k"], says=["Permission denied"],
          inject=lambda host: host.sh(
              f"mkdir -p {CACHE_B}/kernels && chown -R specswap: {CACHE_B} && chmod 0 {CACHE_B}/kernels")),
    Fault("no_memory", "host", "the new server's allocation is refused (LimitAS)", "rolled_back", "crash", "a",
          server=["--eat-mb", "900"], inject=lambda host: host.drop_in("b", "[Service]\nLimitAS=400M\n"),
          says=["MemoryError"]),
    Fault("no_processes", "host", "the new unit may not make a process (TasksMax=1)", "rolled_back", "crash", "a",
          inject=lambda host: host.drop_in("b", "[Service]\nTasksMax=1\n")),
    Fault("clock_jumps_forward", "host", "the wall clock jumps one day ahead in the middle of the swap", "swapped",
          "gate", "b", inject=_jump("start_requested", 86400.0), after=_sane_times, fast=True),
    Fault("clock_jumps_back", "host", "the wall clock jumps one day back in the middle of the swap", "swapped", "gate",
          "b", inject=_jump("start_requested", -86400.0), after=_sane_times),
    Fault("clock_jumps_on_crash", "host", "the wall clock jumps back, and the new server crashes", "rolled_back",
          "crash", "a", server=["--import-error"], inject=_jump("stopped", -86400.0), after=_sane_times),
    Fault("new_unit_edited", "host", "the new unit's file was edited by hand", "swapped", "gate", "b",
          inject=_edit_unit("b", True), after=_unit_is_ours("b")),
    Fault("old_unit_edited", "host", "the serving unit's file was edited by hand, and the new server crashes",
          "rolled_back", "crash", "a", server=["--import-error"], inject=_edit_unit("a", True),
          after=_unit_is_ours("a"), fast=True),
    Fault("unit_edited_same_variant", "host", "the serving unit's file was edited by hand; the same is asked for",
          "swapped", "gate", "a", inject=_edit_unit("a", True), act=_swap_a, after=_unit_is_ours("a")),
    Fault("daemon_reload_missing", "host", "the serving unit's file was edited and systemd was not told", "swapped",
          "gate", "a", inject=_edit_unit("a", False), act=_swap_a, after=_unit_is_ours("a")),
    Fault("new_unit_not_reloaded", "host", "the new unit's file was edited and systemd was not told", "swapped",
          "gate", "b", inject=_edit_unit("b", False), after=_unit_is_ours("b")),
    Fault("unit_masked", injected="an operator masked the new unit", inject=_mask, noticed_by="preflight: unit_masked",
          says=["masked"], **REFUSED),
    Fault("unit_deleted", "host", "the new unit's file was deleted", "swapped", "gate", "b",
          inject=lambda host: host.sh(f"rm /etc/systemd/system/{host.unit('b')}; systemctl daemon-reload"),
          after=_unit_is_ours("b")),
    Fault("old_unit_deleted", "host", "the serving unit's file was deleted, and the new server crashes", "rolled_back",
          "crash", "a", server=["--import-error"],
          inject=lambda host: host.sh(f"rm /etc/systemd/system/{host.unit('a')}; systemctl daemon-reload"),
          after=_unit_is_ours("a")),
    Fault("port_taken", "host", "the old unit is stopped and a foreigner has the port", "refused",
          "preflight: port_foreign", None, committed="a", untouched=True, inject=_port_taken, says=["kill"]),
    Fault("port_taken_on_v6", injected="a foreigner has the port on ::1", inject=_port_taken_v6,
          noticed_by="preflight: port_foreign", clean=False, agrees=False, **REFUSED),
    Fault("old_died_unseen", "host", "the old server was killed and its unit stopped", "swapped", "gate", "b",
          inject=lambda host: host.run("systemctl", "stop", host.unit("a"))),
    Fault("rival_started_by_hand", "host", "somebody started the other variant by hand; the committed one is asked for",
          "swapped", "gate", "a", inject=_started_by_hand, act=_swap_a),
    Fault("rival_runs_beside", "host", "another unit of the slot runs beside the serving one", "swapped", "gate", "a",
          inject=_both, act=_swap_a),
    Fault("disabled_by_hand", "host", "the serving unit was disabled; the same is asked for", "swapped",
          "proof of what serves", "a", act=_swap_a, after=_never_restarted,
          inject=lambda host: host.run("systemctl", "disable", host.unit("a"))),
    Fault("golden_damaged", "host", "the new server crashes, and the golden of the old one is damaged", "rolled_back",
          "crash", "a", server=["--import-error"], inject=_damaged_golden, after=_canary_told),
    Fault("record_damaged", "host", "record.json is JSON of another shape", "swapped", "gate", "b",
          inject=lambda host: host.sh(f"echo '{{\"schema\": 1, \"plans\": {{\"x\": 5}}}}' >{STATE_DIR}/record.json")),
    Fault("user_locks_files", "host", "an ordinary user takes every lock of the slot that it can open", "swapped",
          "gate", "b", inject=_user_locks),
    Fault("release_missing", injected="the release is gone", noticed_by="preflight: release_missing",
          inject=_service_file("release", "mv {0} {0}.away; sleep 0"), clean=False, **SHARED_FILES),
    Fault("release_unfinished", injected="the release has no stamp", noticed_by="preflight: release_unstamped",
          inject=_service_file("release", "rm {0}/specswap-release.json"), **SHARED_FILES),
    Fault("model_truncated", injected="the model's file is shorter than planned", noticed_by="preflight: model_size",
          inject=_service_file("model", "truncate -s 5 {0}"), **SHARED_FILES),
    Fault("model_unverified", injected="the model was never verified", noticed_by="preflight: model_unstamped",
          inject=_service_file("model", "rm $(dirname {0})/specswap-model.json"), **SHARED_FILES),
    Fault("release_changed", injected="somebody put a file into the release", noticed_by="preflight: release_changed",
          inject=_service_file("release", "touch {0}/added.py"), after=_remove_added, **SHARED_FILES),
    Fault("model_changed", injected="the model has other content of the same size",
          noticed_by="preflight: model_changed",
          inject=_service_file("model", "sed -i s/weights/Weights/ {0}"), **SHARED_FILES),
    Fault("launcher_changed", injected="one line was added to the launcher", noticed_by="preflight: launcher_changed",
          inject=_service_file("launcher", "echo '# quick fix' >>{0}"), **SHARED_FILES),
    Fault("launcher_missing", injected="the launcher is gone", noticed_by="preflight: launcher_missing",
          inject=_service_file("launcher", "rm {0}"), **SHARED_FILES),
    Fault("launcher_unreadable", "host", "the services' user may not read the launcher", "rollback_failed", "crash",
          None, committed="a", inject=_service_file("launcher", "chmod 600 {0}"), says=["Permission denied"]),
]  # fmt: skip
