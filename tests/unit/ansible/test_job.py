"""Submit and follow against a host that refuses, loses its connection, or dies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure
from ansible_collections.specswap.core.plugins.plugin_utils import job

FINISH = {"outcome": "swapped", "exit_code": 0, "seconds": 2.5, "downtime_s": 1.0, "cause": None, "advice": None}


def event(seq: int, name: str, **detail: Any) -> dict[str, Any]:
    return {
        "schema": 1,
        "seq": seq,
        "t_wall": 1000.0 + seq,
        "t_mono": float(seq),
        "boot": "b",
        "job": "j1",
        "event": name,
        "tier": None,
        "detail": detail,
    }


class Host:
    """Answers commands with what it was told to, in order; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self.answers: Iterator[Any] = iter(answers)
        self.commands: list[tuple[str, bytes | None]] = []
        self.said: list[str] = []
        self.now = 0.0
        self.resets = 0

    def __call__(self, command: str, data: bytes | None = None) -> tuple[int, str, str]:
        self.commands.append((command, data))
        answer = next(self.answers)
        if isinstance(answer, Exception):
            raise answer
        return answer  # type: ignore[no-any-return]

    def job(self, reconnect_s: float = 60.0) -> job.HostJob:
        return job.HostJob(self, self.reset, self.said.append, reconnect_s, 10, lambda: self.now, self.sleep)

    def reset(self) -> None:
        self.resets += 1

    def sleep(self, seconds: float) -> None:
        self.now += seconds


THERE = (0, "", "")
ACCEPTED = (0, json.dumps({"job": "j1", "slot": "smoke", "after": 4}), "")
PLAN = {"schema": 1, "kind": "rollback", "job": "j1", "slot": "smoke", "controller": {}}


def lines(*events: dict[str, Any]) -> tuple[int, str, str]:
    return 0, "".join(json.dumps(one) + "\n" for one in events), ""


def test_follows_to_the_end_and_tells_every_event_once() -> None:
    host = Host(
        THERE,
        ACCEPTED,
        lines(event(5, "job_accepted"), event(6, "lock_taken")),
        lines(),
        lines(event(7, "job_finished", **FINISH)),
    )
    result = host.job().run(PLAN)
    assert result["outcome"] == "swapped"
    assert result["downtime_s"] == 1.0
    assert [one["seq"] for one in result["events"]] == [5, 6, 7]
    assert len(host.said) == 3
    assert json.loads(host.commands[1][1] or b"") == PLAN
    after = [command.split("--after ")[1].split()[0] for command, _ in host.commands[2:]]
    assert after == ["4", "6", "6"]


def test_outlives_a_dropped_connection_without_losing_or_repeating_events() -> None:
    gone = AnsibleConnectionFailure("gone")
    host = Host(THERE, ACCEPTED, lines(event(5, "job_accepted")), gone, gone, lines(event(6, "job_finished", **FINISH)))
    result = host.job().run(PLAN)
    assert [one["seq"] for one in result["events"]] == [5, 6]
    assert host.resets == 2
    assert any("connection lost" in line for line in host.said)
    assert any("connected again after 4 s" in line for line in host.said)


def test_a_host_that_was_never_reached_fails_at_once() -> None:
    host = Host(AnsibleConnectionFailure("no route"))
    with pytest.raises(AnsibleConnectionFailure, match="no route"):
        host.job().run(PLAN)
    assert (host.now, host.said) == (0.0, [])


def test_gives_up_on_a_lost_connection_after_its_time() -> None:
    host = Host(THERE, ACCEPTED, *[AnsibleConnectionFailure("gone")] * 100)
    with pytest.raises(AnsibleConnectionFailure):
        host.job(reconnect_s=10.0).run(PLAN)
    assert 10.0 <= host.now <= 12.0


def test_a_busy_slot_is_told_with_its_owner() -> None:
    host = Host(THERE, (5, "", "slot smoke is held by ops@laptop, job j0, for 12 s\n"))
    with pytest.raises(job.JobRefused, match="held by ops@laptop"):
        host.job().run(PLAN)


def test_a_bare_host_is_told_apart() -> None:
    host = Host((127, "", "not found"))
    with pytest.raises(job.ToolkitMissing, match=r"site\.yml"):
        host.job().diff(PLAN)


def test_a_job_that_died_without_an_end_is_interrupted_not_waited_for() -> None:
    host = Host(THERE, ACCEPTED, lines(event(5, "job_accepted")), (6, "", "ended without a result\n"))
    result = host.job().run(PLAN)
    assert result["outcome"] == "interrupted"
    assert "next job settles" in result["advice"]


def test_follow_that_fails_says_why() -> None:
    host = Host(THERE, ACCEPTED, (2, "", "specswap-host: error: no slot smoke\n"))
    with pytest.raises(job.HostCommandError, match="no slot smoke"):
        host.job().run(PLAN)


def test_failure_names_cause_traceback_and_way_out() -> None:
    text = job.failure(
        {
            "slot": "smoke",
            "job": "j1",
            "outcome": "rolled_back",
            "cause": "out of GPU memory",
            "report": {"traceback": ["Traceback", "  boom"]},
            "active": "baseline",
            "advice": "lower mem_fraction_static",
        }
    )
    assert text.splitlines()[0] == "Slot smoke: rolled_back."
    assert (
        "out of GPU memory" in text
        and "    boom" in text
        and "now: baseline" in text
        and "lower mem_fraction_static" in text
    )


def test_plans_have_fresh_job_ids_and_no_arguments_of_the_controller() -> None:
    who = job.controller_identity("ansible-playbook swap.yml")
    plans = [job.rollback_plan("smoke", who) for _ in range(5)]
    assert len({plan["job"] for plan in plans}) == 5
    assert set(who) == {"user", "host", "command", "version"}


def test_blocks_of_a_comparison_are_told_in_words() -> None:
    where = {"session": "s", "index": 1, "arm": "ngram", "pair": 0, "blocks": 12}
    done = event(8, "block_finished", **where, e2e_tok_per_s=46.88, requests=4, failed=1, seconds=6.0, file="/x")
    assert job.narrate(event(7, "block_started", **where)) == "block 2 of 12, pair 1: ngram"
    assert "ngram made 46.9 tok/s end to end over 4 requests (1 failed)" in job.narrate(done)
