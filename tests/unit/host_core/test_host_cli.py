"""The command line: usage, JSON shapes, history, diff and status on a simulated host; start-up time."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from host_doubles import Behaviour, World, service_dict, swap_plan
from specswap_host import cli
from specswap_host import state as states
from specswap_host.history import history, history_text
from specswap_host.job import run, submit
from specswap_host.journal import Journal
from specswap_host.lock import Owner, SlotLock
from specswap_host.narrate import narrate
from specswap_host.plan import Plan, Service
from specswap_host.report import plan_diff, slot_status, status_text
from specswap_host.swap import run_swap, what_is_needed

A, B = "llamacpp-a-smoke.service", "llamacpp-b-smoke.service"


@pytest.fixture(autouse=True)
def simulated(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands meet the simulated host, and a submitted job runs at once beside the command that follows it."""
    monkeypatch.setattr(cli, "_context", lambda args: world.context())
    monkeypatch.setenv("SPECSWAP_ROOT", str(world.paths.root))


def register(world: World, **extra: Any) -> None:
    services = [service_dict(world.paths.root, variant) for variant in ("a", "b")]
    for service in services:
        world.argvs[service["unit"]] = service["argv"]
    world.paths.registry_dir.mkdir(parents=True, exist_ok=True)
    data = {"schema": 1, "slot": "smoke", "wanted": "a", "services": services, **extra}
    world.paths.registry("smoke").write_text(json.dumps(data))


def swap(world: World, variant: str, job: str) -> None:
    submit(swap_plan(world, variant, job).to_dict(), world.context())
    run("smoke", job, world.context())


def run_beside(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a submitted job run on a thread, as its transient unit would."""

    def at_once(self: Any, unit: str, argv: list[str], description: str, env: dict[str, str]) -> None:
        job = argv[argv.index("--job") + 1]
        threading.Thread(target=run, args=("smoke", job, world.context())).start()

    monkeypatch.setattr("host_doubles.FakeSystemd.run_transient", at_once)


def do(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    code = cli.main(argv)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_no_command_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([])
    assert caught.value.code == 2


@pytest.mark.parametrize(
    "command", ["status", "swap", "rollback", "compare", "submit", "follow", "run", "diff", "history"]
)
def test_every_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out) > 80


def test_unknown_slot_and_variant_list_the_known(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    code, _, err = do(capsys, "swap", "nonesuch")
    assert code == 2 and "known: a, b" in err
    code, _, err = do(capsys, "status", "--slot", "nonesuch")
    assert code == 2 and "known: smoke" in err


def test_bare_host_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = do(capsys, "rollback")
    assert code == 2 and "site.yml" in err
    assert do(capsys, "status", "--json")[1].strip() == '{"schema": 1, "slots": {}}'


def test_status_of_a_serving_slot(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    swap(world, "a", "j1")
    status = json.loads(do(capsys, "status", "--json")[1])["slots"]["smoke"]
    assert status["active"]["variant"] == "a" and status["active"]["proven_tiers"] == [0, 1, 2, 3, 4, 5, 6]
    assert status["live"]["tiers"] == [0, 1, 2, 3] and status["agree"] is True and status["reasons"] == []
    assert status["live"]["port"][0]["unit"] == "llamacpp-a-smoke.service"
    code, text, _ = do(capsys, "status")
    assert code == 0 and "state and host agree" in text and "declares" not in text


@pytest.mark.parametrize("spoil", ["stopped", "rival", "foreign", "disabled", "unit file"])
def test_status_tells_when_state_and_host_disagree(
    world: World, spoil: str, capsys: pytest.CaptureFixture[str]
) -> None:
    register(world)
    swap(world, "a", "j1")
    if spoil == "stopped":
        world.units["llamacpp-a-smoke.service"].stop_at = world.clock.now
    elif spoil == "rival":
        world.start(B)
    elif spoil == "foreign":
        world.units["llamacpp-a-smoke.service"].argv = ["/bin/sh", "an older command"]
    elif spoil == "disabled":
        world.enabled.clear()
    else:
        world.paths.unit("llamacpp-a-smoke.service").write_text("edited")
    status = slot_status(world.context(), "smoke")
    assert not status["agree"] and status["reasons"]
    assert "DISAGREE" in status_text(status)
    code, out, _ = do(capsys, "status", "--json")
    assert code == 1 and json.loads(out)["slots"]["smoke"]["reasons"]
    code, out, _ = do(capsys, "status")
    assert code == 1 and "DISAGREE" in out


def test_status_of_a_busy_and_of_an_interrupted_slot(world: World) -> None:
    register(world)
    swap(world, "a", "j1")
    Journal(world.paths.journal("smoke")).append("j2", "job_accepted", kind="swap", variant="b")
    assert slot_status(world.context(), "smoke")["unfinished"] == "j2"
    with SlotLock(world.paths.lock("smoke")).acquire(Owner(os.getpid(), "j2", "ann", "desk", "x", time.time())):
        status = slot_status(world.context(), "smoke")
    assert status["busy"]["user"] == "ann" and status["unfinished"] is None
    assert "ann@desk" in status_text(status)


def test_a_healthy_job_is_no_disagreement(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    swap(world, "a", "j1")
    world.start(B)
    assert do(capsys, "status")[0] == 1
    with SlotLock(world.paths.lock("smoke")).acquire(Owner(os.getpid(), "j2", "ann", "desk", "x", time.time())):
        code, out, _ = do(capsys, "status")
    assert code == 0
    assert "DISAGREE" not in out and "a job is changing the slot" in out
    assert f"{B} runs, but is not the committed variant" in out, "what is seen stays said"


def test_status_names_what_the_inventory_declares(world: World) -> None:
    register(world)
    swap(world, "b", "j1")
    assert "declares a" in status_text(slot_status(world.context(), "smoke"))


def test_status_of_a_slot_that_is_gone_from_the_inventory(world: World) -> None:
    register(world)
    swap(world, "a", "j1")
    assert "no longer describes" not in status_text(slot_status(world.context(), "smoke"))
    world.paths.registry("smoke").unlink()
    text = status_text(slot_status(world.context(), "smoke"))
    assert "no longer describes this slot; to end it: systemctl disable --now llamacpp-a-smoke.service" in text


def test_status_names_local_drop_ins_and_plans(world: World) -> None:
    register(world)
    swap(world, "b", "j0")
    swap(world, "a", "j1")
    world.drop_ins["llamacpp-a-smoke.service"] = ("/etc/systemd/system/x.service.d/50-slow.conf",)
    text = status_text(slot_status(world.context(), "smoke"))
    assert "drop-in    /etc/systemd/system/x.service.d/50-slow.conf, made by hand" in text
    for variant in ("a", "b"):
        assert f"plan {service_dict(world.paths.root, variant)['plan_hash']}" in text
        assert service_dict(world.paths.root, variant)["plan_hash"] in history_text(history(world.paths, "smoke"))


def test_history(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no jobs yet" in do(capsys, "history")[1]
    register(world)
    swap(world, "a", "j1")
    world.behaviours[B] = [Behaviour(exit_s=0.4)]
    swap(world, "b", "j2")
    jobs = json.loads(do(capsys, "history", "--json", "-n", "5")[1])["jobs"]
    assert [(job["job"], job["outcome"]) for job in jobs] == [("j1", "swapped"), ("j2", "rolled_back")]
    table = history_text(history(world.paths, "smoke"))
    assert "rolled_back" in table and len({line.index("swap ") for line in table.splitlines()[1:3]}) == 1
    assert table.splitlines()[3].startswith("    cause: ") and B in table.splitlines()[3]
    assert len(json.loads(do(capsys, "history", "--json", "-n", "1")[1])["jobs"]) == 1


def test_diff_shows_everything_and_touches_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    register(world)
    swap(world, "a", "j1")
    calls = list(world.calls)
    before = sorted((path, path.read_bytes()) for path in world.paths.root.rglob("*") if path.is_file())
    diff = plan_diff(world.context(), swap_plan(world, "b"))
    assert (diff["active"], diff["wanted"], diff["noop"]) == ("a", "b", False)
    assert diff["stops"] == ["llamacpp-a-smoke.service"] and diff["starts"] == B
    assert "+ExecStart=/bin/sh b" in diff["unit_diff"]
    assert diff["argv_before"][-1] == "a" and diff["argv_after"][-1] == "b"
    assert diff["findings"] == [] and diff["expected_downtime_s"] is None
    same = plan_diff(world.context(), swap_plan(world, "a"))
    assert same["noop"] and same["stops"] == [] and same["unit_diff"] == ""
    assert world.calls == calls
    assert sorted((path, path.read_bytes()) for path in world.paths.root.rglob("*") if path.is_file()) == before


def test_a_unit_that_would_not_start_at_boot_is_enabled_without_a_restart(world: World) -> None:
    register(world)
    swap(world, "a", "j1")
    world.enabled.clear()
    invocation = world.units[A].invocation
    diff = plan_diff(world.context(), swap_plan(world, "a"))
    assert not diff["noop"] and diff["stops"] == [] and diff["starts"] is None and diff["expected_downtime_s"] == 0.0
    assert diff["refresh"] == [f"enable {A} at boot (it is disabled)"]
    swap(world, "a", "j2")
    events = Journal(world.paths.journal("smoke")).read(job="j2")
    assert events[-1]["detail"]["outcome"] == "swapped" and events[-1]["detail"]["downtime_s"] == 0.0
    assert f"without a restart of a: enable {A} at boot" in narrate(events[-2])
    assert world.enabled == {A} and world.units[A].invocation == invocation and world.units[A].stop_at is None
    assert plan_diff(world.context(), swap_plan(world, "a"))["noop"]


@pytest.mark.parametrize("spoil", ["rival runs", "systemd has not read the file"])
def test_diff_goes_by_what_the_job_goes_by(world: World, monkeypatch: pytest.MonkeyPatch, spoil: str) -> None:
    register(world)
    swap(world, "a", "j1")
    context = world.context()
    if spoil == "rival runs":
        world.start(B)
    else:
        show = context.systemd.show
        stale = lambda *units: [replace(state, need_daemon_reload=True) for state in show(*units)]  # noqa: E731
        monkeypatch.setattr(context.systemd, "show", stale)
    diff = plan_diff(context, swap_plan(world, "a"))
    assert not diff["noop"] and not diff["refresh"] and A in diff["stops"] and diff["starts"] == A
    assert what_is_needed(context, states.load(world.paths.state("smoke"), "smoke"), plan_service(world, "a")).kind == (
        "swap"
    )


def plan_service(world: World, variant: str) -> Service:
    service = swap_plan(world, variant).service
    assert service is not None
    return service


def test_boot_settings_that_cannot_be_written_are_told(world: World) -> None:
    register(world)
    swap(world, "a", "j1")
    world.enabled.clear()
    world.fail["enable"] = "Read-only file system"
    swap(world, "a", "j2")
    committed = Journal(world.paths.journal("smoke")).read(job="j2")[-2]
    assert "Read-only" in committed["detail"]["warning"] and "Read-only" in narrate(committed)
    assert world.calls[-1] == "daemon-reload", "the gate's drop-in is gone and must not stay in force"


def test_submit_reads_stdin(world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(swap_plan(world, "a", "j1").to_dict())))
    code, out, _ = do(capsys, "submit")
    assert code == 0 and json.loads(out) == {"job": "j1", "slot": "smoke", "after": 0}
    monkeypatch.setattr(sys, "stdin", io.StringIO("nonsense"))
    code, _, err = do(capsys, "submit")
    assert code == 2 and "not JSON" in err


def test_submit_to_a_busy_slot_is_code_5_with_owner(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(swap_plan(world, "a", "j1").to_dict())))
    with SlotLock(world.paths.lock("smoke")).acquire(Owner(os.getpid(), "j0", "ann", "desk", "swap.yml", time.time())):
        code, out, err = do(capsys, "submit")
    assert code == 5 and "ann@desk" in err
    assert json.loads(out)["owner"]["job"] == "j0"


def test_follow_from_a_point_to_the_end(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    swap(world, "a", "j1")
    code, out, _ = do(capsys, "follow", "--job", "j1")
    events = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and events[0]["event"] == "job_accepted" and events[-1]["event"] == "job_finished"
    code, out, _ = do(capsys, "follow", "--job", "j1", "--after", str(events[-2]["seq"]), "--wait", "5")
    assert [json.loads(line)["event"] for line in out.splitlines()] == ["job_finished"]
    assert "SWAPPED" in do(capsys, "follow", "--job", "j1", "--text")[1]


def test_follow_a_dead_job_is_interrupted(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    Journal(world.paths.journal("smoke")).append("j1", "job_accepted", kind="swap")
    code, _, err = do(capsys, "follow", "--job", "j1", "--after", "1", "--wait", "0.1")
    assert code == 6 and "settles" in err


def test_follow_a_job_that_never_was(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world)
    swap(world, "a", "j1")
    code, _, err = do(capsys, "follow", "--job", "nope")
    assert code == 2 and "no job nope was submitted" in err and "history" in err


def test_swap_by_name_follows_and_exits_with_the_outcome(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(world)
    run_beside(world, monkeypatch)
    code, out, _ = do(capsys, "swap", "a")
    assert code == 0 and "SWAPPED" in out
    world.behaviours[B] = [Behaviour(exit_s=0.4)]
    code, out, _ = do(capsys, "swap", "b", "--slot", "smoke", "--json")
    assert code == 3 and json.loads(out.splitlines()[-1])["detail"]["outcome"] == "rolled_back"
    assert do(capsys, "rollback")[0] == 5


def test_compare_needs_registered_settings(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    register(world)
    code, _, err = do(capsys, "compare", "a", "b")
    assert code == 2 and "compare.yml" in err
    register(world, benchmark={"suite": {"name": "s"}, "request": {}, "runner": ["/bin/true"], "pairs": 6})
    run_beside(world, monkeypatch)
    code, out, _ = do(capsys, "compare", "a", "b", "--json")
    assert code == 0 and json.loads(out.splitlines()[0])["detail"]["pairs"] == 6
    assert do(capsys, "compare", "a", "b", "--quick")[0] == 0


@pytest.mark.parametrize("pairs", ["0", "-1", "x"])
def test_compare_takes_at_least_one_pair(world: World, capsys: pytest.CaptureFixture[str], pairs: str) -> None:
    register(world, benchmark={"suite": {"name": "s"}, "request": {}, "runner": ["/bin/true"], "pairs": 6})
    with pytest.raises(SystemExit) as caught:
        cli.main(["compare", "a", "b", "--pairs", pairs])
    assert caught.value.code == 2 and "whole number from 1 on" in capsys.readouterr().err
    assert world.calls == []


def test_registry_of_a_newer_version_is_refused(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    register(world, schema=9)
    code, _, err = do(capsys, "swap", "a")
    assert code == 2 and "schema 9 is newer" in err


def test_status_survives_a_broken_state_file(world: World) -> None:
    register(world)
    world.paths.state("smoke").write_text("{")
    status = slot_status(world.context(), "smoke")
    assert not status["agree"] and "state.json" in status["reasons"][0]


def test_help_and_start_are_fast_and_need_no_heavy_module() -> None:
    """What a no-op swap pays before it looks at anything; the bound is ten times the aim, for busy machines."""
    code = "import sys; import specswap_host.cli; print(','.join(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.strip().split(","))
    assert not loaded & {"specswap_host.swap", "specswap_host.gate", "subprocess", "http.client", "difflib"}
    start = time.monotonic()
    subprocess.run([sys.executable, "-m", "specswap_host", "--help"], capture_output=True, check=True)
    assert time.monotonic() - start < 3.0


def test_run_swap_accepts_what_diff_accepts(world: World) -> None:
    plan = Plan.from_dict(swap_plan(world, "a").to_dict())
    assert plan_diff(world.context(), plan)["findings"] == []
    assert run_swap(plan, Journal(Path(world.paths.journal("smoke"))), world.context()).outcome == "swapped"
