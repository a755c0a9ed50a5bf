"""Two hosts at once, testinfra after provisioning, and a quick comparison with real tokens."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT, Hosts


def test_two_hosts_in_parallel(provisioned: Hosts) -> None:
    result = provisioned.play("site.yml", limit="ct200,ct201").ok()
    assert result.count("changed", "ct200") == 0, result.text
    assert result.count("changed", "ct201") > 0
    for host in ("ct200", "ct201"):
        assert provisioned.active_units(host) == ["llamacpp-baseline-smoke.service"]
    swapped = provisioned.play("swap.yml", limit="ct200,ct201", variant="ngram").ok()
    assert swapped.text.count("SWAPPED in") == 2, swapped.text
    for host in ("ct200", "ct201"):
        assert provisioned.active_units(host) == ["llamacpp-ngram-smoke.service"]
    provisioned.play("swap.yml", limit="ct200,ct201", variant="baseline").ok()


def test_testinfra_passes_after_provisioning(provisioned: Hosts) -> None:
    env = dict(os.environ, ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"))
    spec = f"ansible://ct200?ansible_inventory={provisioned.sandbox.inventory}"
    tests = str(ROOT / "tests/testinfra")
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", tests, f"--hosts={spec}"]
    done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_quick_comparison_has_real_tokens_and_claims_nothing(provisioned: Hosts, tmp_path: Path) -> None:
    provisioned.play(
        "compare.yml", arms=["baseline", "ngram"], quick=True, specswap_results_dir=str(tmp_path / "results")
    ).ok()
    latest = tmp_path / "results/latest"
    comparison = json.loads((latest / "comparison.json").read_text())
    assert set(comparison["arms"]) == {"baseline", "ngram"}
    for arm in comparison["arms"].values():
        assert arm["completion_tokens"] > 50
        assert arm["failed"] == 0
        assert arm["e2e_tok_per_s"] > 0
    assert comparison["verdict"]["word"] == "not enough rounds"
    for block in comparison["blocks"]:
        assert block["client_uid"] != 0, "the client ran as root"
        for request in block["requests"]:
            assert request["completion_tokens"] > 0
            assert len(request["output_sha256"]) == 64
    assert (latest / "report.html").read_text().startswith("<!doctype html>")
    assert "baseline" in (latest / "report.md").read_text()
    # The variant that served before the session serves again.
    assert provisioned.active_units() == ["llamacpp-baseline-smoke.service"]


def test_bench_measures_the_active_variant_with_a_suite_of_the_controller(provisioned: Hosts, tmp_path: Path) -> None:
    suite = tmp_path / "mine.jsonl"
    suite.write_text('{"id": "count", "turns": ["Count from one to ten."], "max_tokens": 32}\n')
    provisioned.play("bench.yml", specswap_results_dir=str(tmp_path / "results"), suite=str(suite)).ok()
    (file,) = (tmp_path / "results/blocks").iterdir()
    result = json.loads(file.read_text())
    assert (result["host"], result["slot"], result["variant"]) == ("ct200", "smoke", "baseline")
    block = result["block"]
    assert [request["prompt"] for request in block["requests"]] == ["count"]
    assert 0 < block["summary"]["completion_tokens"] <= 32 and block["summary"]["failed"] == 0
    assert block["suite"] == "mine" and block["client_uid"] != 0
    assert block["server_info"]["model_path"].endswith(".gguf")
