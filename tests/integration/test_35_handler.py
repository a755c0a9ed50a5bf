"""The handler's door: what an inventory change means for the service that runs."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import yaml
from conftest import ROOT, Hosts

BASELINE = "llamacpp-baseline-smoke.service"


@pytest.fixture
def variants(provisioned: Hosts) -> dict[str, Any]:
    """The variants of the test inventory, to be changed; afterwards the host is what the inventory says again."""
    text = (provisioned.extra_inventory / "host_vars/ct200.yml").read_text()
    return copy.deepcopy(yaml.safe_load(text)["specswap_variants"])


def jobs(hosts: Hosts) -> int:
    text = hosts.run(["cat", "/var/lib/specswap/smoke/journal.jsonl"])
    return sum(1 for line in text.splitlines() if json.loads(line)["event"] == "job_finished")


def test_a_changed_flag_swaps_once_and_is_proven_live(provisioned: Hosts, variants: dict[str, Any]) -> None:
    provisioned.play("site.yml").ok()
    before, count = provisioned.show(BASELINE, "InvocationID"), jobs(provisioned)
    variants["baseline"]["args"]["ctx"] = 2048
    provisioned.play("site.yml", specswap_variants=variants).ok()
    assert jobs(provisioned) == count + 1, "exactly one job"
    assert provisioned.show(BASELINE, "InvocationID") != before
    pid = provisioned.show(BASELINE, "MainPID")
    argv = provisioned.run(["cat", f"/proc/{pid}/cmdline"]).split("\0")
    assert argv[argv.index("--ctx") + 1] == "2048"
    assert provisioned.play("site.yml", specswap_variants=variants).ok().count("changed") == 0
    provisioned.play("site.yml").ok()


@pytest.mark.parametrize("change", ["another variant's flag", "a budget", "a variant more"])
def test_unrelated_changes_restart_nothing(provisioned: Hosts, variants: dict[str, Any], change: str) -> None:
    before = provisioned.show(BASELINE, "InvocationID")
    extra: dict[str, Any] = {"specswap_variants": variants}
    if change == "another variant's flag":
        variants["ngram"]["args"]["spec_ngram_size_m"] = 32
    elif change == "a budget":
        extra["specswap_budgets"] = {"load_s": 300}
    else:
        variants["ngram_wide"] = {"extends": "ngram", "args": {"spec_ngram_size_m": 64}}
    result = provisioned.play("site.yml", **extra).ok()
    assert provisioned.show(BASELINE, "InvocationID") == before, f"{change} restarted the service"
    assert provisioned.status()["slots"]["smoke"]["active"]["variant"] == "baseline"
    assert result.count("failures") == 0


def test_another_declared_variant_swaps_before_anything_is_measured(provisioned: Hosts) -> None:
    example = yaml.safe_load((ROOT / "inventory/group_vars/embedded.yml").read_text())
    slots = copy.deepcopy(example["specswap_slots"])
    slots["smoke"]["variant"] = "ngram"
    count = jobs(provisioned)
    result = provisioned.play("site.yml", specswap_slots=slots).ok()
    assert jobs(provisioned) == count + 1
    assert provisioned.active_units() == ["llamacpp-ngram-smoke.service"]
    assert result.text.index("SWAPPED in") < result.text.index("Prove what the host serves")
    provisioned.play("site.yml").ok()
    assert provisioned.active_units() == [BASELINE]
