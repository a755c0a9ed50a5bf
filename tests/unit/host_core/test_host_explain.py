"""`explain`, the last job in `status`, and what the hand-over sweeps and asks the GPUs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from host_doubles import Behaviour, World, swap_plan
from specswap_host import cli
from specswap_host.explain import evidence_text, explain, explain_text, find_job
from specswap_host.gpus import GpuError, Gpus
from specswap_host.job import run, submit
from specswap_host.journal import Journal
from specswap_host.leftovers import sweep
from specswap_host.plan import PlanError
from specswap_host.report import slot_status, status_text
from specswap_host.swap import restore_committed

B = "llamacpp-b-smoke.service"
CRASH = ["loading", "Traceback (most recent call last):", '  File "x.py", line 1', "KeyError: 'draft'"]


def swap(world: World, variant: str, job: str, **changes: Any) -> int:
    submit(swap_plan(world, variant, job, **changes).to_dict(), world.context())
    return run("smoke", job, world.context())


def test_explain_a_good_swap(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert swap(world, "a", "j1") == 0
    assert swap(world, "b", "j2") == 0
    assert cli.main(["--root", str(world.paths.root), "explain", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["job"], told["outcome"], told["user"], told["variant"]) == ("j2", "swapped", "ops", "b")
    (passage,) = told["passages"]
    assert [tier["tier"] for tier in passage["tiers"]] == [0, 1, 2, 3, 4, 5, 6]
    assert all(tier["result"] == "passed" and tier["budget_s"] and tier["evidence"] for tier in passage["tiers"])
    assert [step["name"] for step in told["steps"]] == ["lock", "preflight", "stop", "hand-over", "soak", "commit"]
    assert told["downtime_s"] > 0 and told["failure"] is None
    assert cli.main(["--root", str(world.paths.root), "explain", "j1"]) == 0
    text = capsys.readouterr().out
    assert "job j1 on slot smoke" in text and "no drafts are claimed" in text and "downtime  not measured" in text


def test_explain_a_rollback_shows_both_starts_and_the_whole_traceback(world: World) -> None:
    swap(world, "a", "j1")
    world.behaviours[B] = [Behaviour(exit_s=0.4, log=CRASH)]
    assert swap(world, "b", "j2") == 3
    told = explain(world.paths, "smoke", "j2")
    assert [(one["variant"], one["why"]) for one in told["passages"]] == [("b", "wanted"), ("a", "way back")]
    assert told["passages"][0]["tiers"][-1]["result"] == "crashed"
    assert told["failure"]["traceback"] == CRASH[1:] and told["failure"]["cause"]["id"] == "python_traceback"
    text = explain_text(told)
    assert all(line in text for line in CRASH[1:]) and "rolled_back" in text and "way back" in text


def test_what_was_only_told_on_the_way_back_is_not_the_failure(world: World) -> None:
    swap(world, "a", "j1")
    world.behaviours["llamacpp-a-smoke.service"] = [Behaviour(texts={"river": "word " * 20})]
    world.behaviours[B] = [Behaviour(exit_s=0.4, log=CRASH)]
    assert swap(world, "b", "j2") == 3
    told = explain(world.paths, "smoke", "j2")
    results = {tier["tier"]: tier["result"] for tier in told["passages"][1]["tiers"]}
    assert results[4] == "passed" and results[5] == "told only" and told["failure"]["event"] == "crashed"
    world.units["llamacpp-a-smoke.service"].stop_at = world.clock.now
    journal = Journal(world.paths.journal("smoke"))
    journal.append("j3", "job_accepted", kind="swap", variant="b")
    restore_committed(swap_plan(world, "b", "j3"), journal, world.context())
    assert explain(world.paths, "smoke", "j3")["failure"] is None


def test_explain_what_is_not_there(world: World) -> None:
    with pytest.raises(PlanError, match="no jobs yet"):
        find_job(world.paths, ["smoke"], None)
    swap(world, "a", "j1")
    with pytest.raises(PlanError, match=r"no job x in the journal \(the last: j1\)"):
        find_job(world.paths, ["smoke"], "x")
    Journal(world.paths.journal("smoke")).append("j9", "job_accepted", kind="swap", variant="b")
    assert find_job(world.paths, ["smoke"], None) == ("smoke", "j9")
    assert "unfinished" in explain_text(explain(world.paths, "smoke", "j9"))


def test_status_shows_the_last_job(world: World) -> None:
    swap(world, "a", "j1")
    status = slot_status(world.context(), "smoke")
    assert status["last_job"]["job"] == "j1"
    assert "last job   j1 swap to a: swapped in" in status_text(status)


def test_evidence_in_a_line_leaves_long_texts_out() -> None:
    line = evidence_text({"requests": {"a": 1}, "golden": "equal", "pids": [1, 2], "empty": None})
    assert line == "golden=equal, pids=[1, 2]"
    assert len(evidence_text({"a": "x" * 500})) == 160


# --- leftovers


def fake_proc(root: Path, shm: Path, opened: str = "", mapped: str = "") -> Path:
    """One process, 4242, of this user."""
    folder = root / "proc" / "4242"
    (folder / "fd").mkdir(parents=True)
    if opened:
        (folder / "fd" / "3").symlink_to(shm / opened)
    (folder / "maps").write_text(f"7f00-7f01 rw-s 0 00:19 5    {shm}/{mapped}\n" if mapped else "")
    return root / "proc"


@pytest.mark.parametrize(
    ("name", "opened", "mapped", "gone"),
    [
        ("psm_x_4241", "", "", True),
        ("psm_x_4242", "", "", False),
        ("psm_x_4241", "psm_x_4241", "", False),
        ("psm_x_4241", "", "psm_x_4241", False),
        ("psm_0a1b2c3d", "", "", False),
    ],
)
def test_only_leftovers_of_dead_makers_are_swept(
    tmp_path: Path, name: str, opened: str, mapped: str, gone: bool
) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    (shm / name).write_text("x")
    proc = fake_proc(tmp_path, shm, opened, mapped)
    assert sweep(os.getuid() + 1, shm, proc) == [], "of another user"
    assert sweep(os.getuid(), shm, proc) == ([str(shm / name)] if gone else [])
    assert (shm / name).exists() is not gone


def test_a_nameless_segment_goes_when_the_user_has_no_process(tmp_path: Path) -> None:
    shm = tmp_path / "shm"
    shm.mkdir()
    (shm / "psm_0a1b2c3d").write_text("x")
    (shm / "folder_99999").mkdir()
    (shm / "link_99999").symlink_to("/etc/passwd")
    (tmp_path / "proc").mkdir()
    assert sweep(os.getuid(), shm, tmp_path / "proc") == [str(shm / "psm_0a1b2c3d")]
    assert sorted(path.name for path in shm.iterdir()) == ["folder_99999", "link_99999"]


def test_the_swap_sweeps_and_says_so(world: World) -> None:
    swap(world, "a", "j1")
    ctx = world.context()
    users: list[str] = []

    def swept(user: str) -> list[str]:
        users.append(user)
        return ["/dev/shm/psm_1"]

    ctx.sweep = swept
    submit(swap_plan(world, "b", "j2").to_dict(), ctx)
    assert run("smoke", "j2", ctx) == 0
    events = Journal(world.paths.journal("smoke")).read(job="j2")
    detail = next(e["detail"] for e in events if e["event"] == "handover_proven")
    assert detail["swept"] == ["/dev/shm/psm_1"] and detail["gpu"] == "no GPU in this slot" and users == ["root"]


# --- GPUs


def gpus(apps: str, memory: str = "0, GPU-a, 700\n1, GPU-b, 9000\n") -> Gpus:
    def answer(argv: Sequence[str]) -> str:
        assert argv[0] == "nvidia-smi"
        return apps if "--query-compute-apps=gpu_uuid,pid,used_memory" in argv else memory

    return Gpus(answer)


@pytest.mark.parametrize(
    ("apps", "indexes", "left"),
    [
        ("", [0], []),
        ("", [1], ["GPU 1: 9000 MiB are held by no visible process (base: 1024 MiB)"]),
        ("GPU-b, 7, 8500\n", [1], ["GPU 1: pid 7 still holds 8500 MiB"]),
        ("GPU-b, 8, 8500\n", [1], []),
        ("GPU-b, 8, [N/A]\n", [1], ["GPU 1: 9000 MiB are held by no visible process (base: 1024 MiB)"]),
    ],
)
def test_gpu_memory_back_at_base(apps: str, indexes: list[int], left: list[str]) -> None:
    report = gpus(apps).report(indexes, [7])
    assert (report.free, list(report.left)) == (not left, left)


def test_no_gpu_and_no_tool() -> None:
    def missing(argv: Sequence[str]) -> str:
        raise AssertionError("a slot without GPUs asks nobody")

    assert Gpus(missing).report([], []).note == "no GPU in this slot"
    with pytest.raises(GpuError, match="GPU 5 does not exist"):
        gpus("").report([5], [])


def test_gpus_that_cannot_be_looked_at_fail_the_handover(world: World) -> None:
    slot = {"slot": {"name": "smoke", "port": 30001, "bind": "127.0.0.1", "gpus": [0]}}
    ctx = world.context()

    def broken(argv: Sequence[str]) -> str:
        raise GpuError("nvidia-smi: no answer within 10 s")

    ctx.gpus = Gpus(broken)
    submit(swap_plan(world, "a", "j1", **slot).to_dict(), ctx)
    assert run("smoke", "j1", ctx) != 0
    end = Journal(world.paths.journal("smoke")).read(job="j1")[-1]["detail"]
    assert "nvidia-smi: no answer" in end["cause"]


def test_the_handover_waits_for_the_memory_of_the_old_server_s_processes(world: World) -> None:
    slot = {"slot": {"name": "smoke", "port": 30001, "bind": "127.0.0.1", "gpus": [0]}}
    ctx = world.context()
    for variant, apps in (("a", ""), ("b", "GPU-a, 101, 5000\n")):
        ctx.gpus = gpus(apps, "0, GPU-a, 5700\n" if apps else "0, GPU-a, 700\n")
        if apps:
            world.clock.after(1.0, lambda: setattr(ctx, "gpus", gpus("")))
        submit(swap_plan(world, variant, variant, **slot).to_dict(), ctx)
        assert run("smoke", variant, ctx) == 0
    assert world.units["llamacpp-a-smoke.service"].pid == 101
    events = Journal(world.paths.journal("smoke")).read(job="b")
    proven = next(e["detail"] for e in events if e["event"] == "handover_proven")
    assert 0.7 < proven["seconds"] < 1.2 and proven["gpu"] == "GPUs 0 at base"
