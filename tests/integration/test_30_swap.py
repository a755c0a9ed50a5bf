"""swap.yml on real systemd with the real engine: good, no-op, crash, refusal, rollback."""

from __future__ import annotations

import json
import re

from conftest import Hosts

BASELINE = "llamacpp-baseline-smoke.service"
NGRAM = "llamacpp-ngram-smoke.service"


def journal(hosts: Hosts) -> list[dict]:
    text = hosts.run(["cat", "/var/lib/specswap/smoke/journal.jsonl"])
    return [json.loads(line) for line in text.splitlines()]


def last_outcome(hosts: Hosts) -> dict:
    return [e for e in journal(hosts) if e["event"] == "job_finished"][-1]["detail"]


def test_check_shows_what_a_swap_would_do_and_touches_nothing(provisioned: Hosts) -> None:
    before = journal(provisioned)
    invocation = provisioned.show(BASELINE, "InvocationID")
    result = provisioned.play("swap.yml", options="--check --diff", variant="ngram").ok()
    assert result.count("changed") == 1, result.text
    assert BASELINE in result.text, "what would stop is not named"
    assert "ngram-simple" in result.text, "the difference in argv is not shown"
    assert journal(provisioned) == before
    assert provisioned.show(BASELINE, "InvocationID") == invocation


def test_swap_goes_through_every_tier(provisioned: Hosts) -> None:
    result = provisioned.play("swap.yml", variant="ngram").ok()
    assert provisioned.active_units() == [NGRAM]
    assert provisioned.show(NGRAM, "UnitFileState") == "enabled"
    assert provisioned.show(BASELINE, "UnitFileState") == "disabled"
    assert last_outcome(provisioned)["outcome"] == "swapped"
    job = journal(provisioned)[-1]["job"]
    passed = [e["tier"] for e in journal(provisioned) if e["job"] == job and e["event"] == "tier_passed"]
    assert passed[:5] == [0, 1, 2, 3, 4]
    for tier in range(5):
        assert f"tier {tier}" in result.text
    assert "baseline" in result.text, "the play does not say that the inventory still declares baseline"


def test_asking_for_the_active_variant_is_a_noop(provisioned: Hosts) -> None:
    invocation = provisioned.show(NGRAM, "InvocationID")
    result = provisioned.play("swap.yml", variant="ngram").ok()
    assert result.count("changed") == 0, result.text
    assert provisioned.show(NGRAM, "InvocationID") == invocation
    finished = last_outcome(provisioned)
    assert finished["outcome"] == "noop"
    assert finished["seconds"] < 2.0


def test_crash_at_start_is_told_with_its_cause_and_undone(provisioned: Hosts) -> None:
    result = provisioned.play("swap.yml", variant="bad_flag")
    assert result.rc != 0
    assert "rolled_back" in result.text
    assert "--no-such-flag" in result.text, "the engine's own words are missing"
    crash = [e for e in journal(provisioned) if e["event"] == "crashed"][-1]
    start = [e for e in journal(provisioned) if e["event"] == "start_requested" and e["seq"] < crash["seq"]][-1]
    assert crash["t_mono"] - start["t_mono"] < 10
    # systemd knows when the process ended; the verdict must follow within a second.
    assert crash["detail"]["seconds_after_exit"] < 1.0
    assert last_outcome(provisioned)["outcome"] == "rolled_back"
    assert provisioned.status()["slots"]["smoke"]["active"]["variant"] in ("ngram", "baseline")


def test_traceback_of_this_invocation_is_shown(provisioned: Hosts) -> None:
    result = provisioned.play("swap.yml", variant="bad_env")
    assert result.rc != 0
    assert re.search(r"encodings|Python path configuration|Fatal Python error", result.text), result.text
    assert last_outcome(provisioned)["outcome"] == "rolled_back"


def test_missing_model_is_refused_and_nothing_is_touched(provisioned: Hosts) -> None:
    active = provisioned.active_units()
    invocation = provisioned.show(active[0], "InvocationID")
    path = provisioned.run(["sh", "-c", "ls -d /opt/specswap/models/*/"]).split()[0]
    provisioned.run(["mv", path, "/opt/specswap/models-away"])
    other = "ngram" if "baseline" in active[0] else "baseline"
    try:
        result = provisioned.play("swap.yml", variant=other)
    finally:
        provisioned.run(["mv", "/opt/specswap/models-away", path])
    assert result.rc != 0
    assert "refused" in result.text
    assert path.rstrip("/") in result.text
    assert provisioned.active_units() == active
    assert provisioned.show(active[0], "InvocationID") == invocation


def test_rollback_returns_to_the_variant_before(provisioned: Hosts) -> None:
    provisioned.play("swap.yml", variant="baseline").ok()
    provisioned.play("swap.yml", variant="ngram").ok()
    provisioned.play("rollback.yml").ok()
    assert provisioned.active_units() == [BASELINE]
    assert provisioned.status()["slots"]["smoke"]["active"]["variant"] == "baseline"


def test_site_brings_back_what_the_inventory_declares(provisioned: Hosts) -> None:
    provisioned.play("swap.yml", variant="ngram").ok()
    result = provisioned.play("site.yml").ok()
    assert result.count("changed") > 0
    assert provisioned.active_units() == [BASELINE]
    assert provisioned.play("site.yml").ok().count("changed") == 0


def test_status_speaks_the_truth(provisioned: Hosts) -> None:
    result = provisioned.play("status.yml").ok()
    assert result.count("changed") == 0
    assert "baseline" in result.text
    provisioned.run(["systemctl", "stop", BASELINE])
    try:
        stopped = provisioned.play("status.yml")
        assert "inactive" in stopped.text, "a stopped service must not be called active"
    finally:
        provisioned.play("swap.yml", variant="baseline").ok()
    assert provisioned.active_units() == [BASELINE]


def test_site_enables_what_would_not_start_at_boot_without_a_restart(provisioned: Hosts) -> None:
    invocation = provisioned.show(BASELINE, "InvocationID")
    provisioned.run(["systemctl", "disable", BASELINE])
    told = provisioned.play("site.yml", options="--check --diff").ok()
    assert f"would enable {BASELINE} at boot" in told.text and "nothing is stopped" in told.text
    assert provisioned.show(BASELINE, "UnitFileState") == "disabled", "check mode touches nothing"
    provisioned.play("site.yml").ok()
    assert provisioned.show(BASELINE, "UnitFileState") == "enabled"
    assert provisioned.show(BASELINE, "InvocationID") == invocation, "it was restarted for that"
    assert provisioned.play("site.yml").ok().count("changed") == 0
