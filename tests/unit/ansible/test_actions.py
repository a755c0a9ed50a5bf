"""Actions against a host that answers as hosts in trouble do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from action_double import run_action
from ansible import context
from ansible.errors import AnsibleError
from ansible.module_utils.testing import patch_module_args
from ansible_collections.specswap.core.plugins.action import (
    bench_block,
    comparison,
    host_facts,
    inventory_check,
    model_store,
    slot_rollback,
    slot_status,
    slot_swap,
    venv_release,
)
from ansible_collections.specswap.core.plugins.modules import service_units
from ansible_collections.specswap.core.plugins.plugin_utils import job, resolve
from inventory_data import collection_root, inventory


@pytest.fixture
def services(tmp_path: Path) -> list[dict[str, Any]]:
    return resolve.services(inventory(), collection_root(tmp_path))


def host(outcome: str, exit_code: int) -> Any:
    """A host whose next job ends with `outcome`."""

    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        if command.startswith("test -x"):
            return 0, "", ""
        if " submit" in command:
            plan = json.loads(data or b"")
            return 0, json.dumps({"job": plan["job"], "slot": plan["slot"], "after": 0}), ""
        detail = {"outcome": outcome, "exit_code": exit_code, "seconds": 0.2, "cause": "x", "advice": "y"}
        end = {"seq": 1, "t_wall": 0.0, "t_mono": 0.0, "job": "j", "tier": None, "event": "job_finished"}
        return 0, json.dumps({**end, "detail": detail}) + "\n", ""

    return answer


@pytest.mark.parametrize(
    ("outcome", "code", "changed"),
    [("swapped", 0, True), ("noop", 0, False), ("refused", 5, False), ("rolled_back", 3, True)],
)
def test_a_job_that_touched_nothing_has_changed_nothing(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], outcome: str, code: int, changed: bool
) -> None:
    for plugin, args in ((slot_swap, {"variant": "ngram"}), (slot_rollback, {})):
        given = {"services": services, **args}
        result, _ = run_action(monkeypatch, plugin.ActionModule, given, shell=host(outcome, code))
        assert (result["changed"], result["failed"]) == (changed, code != 0), result


def bare(command: str, data: bytes | None) -> tuple[int, str, str]:
    return 127, "", "/bin/sh: 1: /usr/local/bin/specswap-host: not found"


def test_check_of_a_swap_on_a_bare_host_fails_as_the_swap_would(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]]
) -> None:
    args = {"services": services, "variant": "ngram"}
    result, _ = run_action(monkeypatch, slot_swap.ActionModule, args, shell=bare, check=True)
    assert result["failed"] and "ansible-playbook site.yml" in result["msg"], result
    args["after_toolkit"] = True
    result, said = run_action(monkeypatch, slot_swap.ActionModule, args, shell=bare, check=True)
    assert not result.get("failed") and result["changed"]
    assert "start llamacpp-ngram-smoke.service" in said[0]


def no_password(command: str, data: bytes | None) -> tuple[int, str, str]:
    raise AnsibleError("Missing sudo password")


def no_sudo(command: str, data: bytes | None) -> tuple[int, str, str]:
    return 127, "", "/bin/sh: 1: sudo: not found\n"


@pytest.mark.parametrize(
    ("shell", "words"), [(no_password, "Missing sudo password"), (no_sudo, "sudo: not found")], ids=["password", "sudo"]
)
def test_a_login_that_cannot_become_root_is_told_what_to_do(
    monkeypatch: pytest.MonkeyPatch, shell: Any, words: str
) -> None:
    result, _ = run_action(monkeypatch, slot_status.ActionModule, {}, shell=shell)
    assert result["failed"] and words in result["msg"] and "ansible_become_password" in result["msg"], result
    assert "Provision it first" not in result["msg"]


def test_the_first_contact_of_a_play_tells_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def module(name: str, args: Any) -> dict[str, Any]:
        return {"failed": True, "rc": 127, "module_stderr": "/bin/sh: 1: sudo: not found\n", "msg": "MODULE FAILURE"}

    result, _ = run_action(monkeypatch, host_facts.ActionModule, {}, module=module)
    assert result["failed"] and "-K" in result["msg"] and "sudo: not found" in result["msg"], result


def test_another_error_of_ansible_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(command: str, data: bytes | None) -> tuple[int, str, str]:
        raise AnsibleError("no such thing")

    with pytest.raises(AnsibleError, match="no such thing"):
        run_action(monkeypatch, slot_status.ActionModule, {}, shell=broken)


COMPARE: dict[str, Any] = {"arms": ["baseline", "ngram"], "release_path": "/opt/specswap/envs/venv_bench-0"}


@pytest.mark.parametrize(
    ("given", "swaps"), [({"pairs": 3}, 6), ({"pairs": 6, "quick": True}, 2), ({"pairs": 1}, 2)], ids=str
)
def test_check_of_a_comparison_counts_the_swaps_that_there_will_be(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], given: dict[str, Any], swaps: int
) -> None:
    args = {"services": services, **COMPARE, **given}
    _, said = run_action(monkeypatch, comparison.ActionModule, args, check=True)
    assert f"would swap slot smoke {swaps} times" in said[0]


@pytest.mark.parametrize("pairs", [0, -1, 1001])
def test_a_comparison_has_a_sensible_number_of_pairs(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], pairs: int
) -> None:
    args = {"services": services, **COMPARE, "pairs": pairs}
    result, _ = run_action(monkeypatch, comparison.ActionModule, args, check=True)
    assert result["failed"] and "pairs: must be a whole number from 1 to 1000" in result["msg"], result


def test_a_quick_plan_has_one_pair(services: list[dict[str, Any]]) -> None:
    two = {service["variant"]: service for service in services}
    plan = job.compare_plan(two, {}, pairs=6, quick=True, suite={}, request={}, runner=[])
    assert (plan["pairs"], plan["quick"]) == (1, True)


@pytest.mark.parametrize("check", [False, True])
def test_a_place_that_takes_no_results_is_told_before_the_job(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path, check: bool
) -> None:
    file = tmp_path / "file"
    file.write_text("")
    for plugin, args in ((comparison, COMPARE), (bench_block, {"release_path": COMPARE["release_path"]})):
        for place in (file, file / "below"):
            given = {"services": services, **args, "results_dir": str(place)}
            result, _ = run_action(monkeypatch, plugin.ActionModule, given, check=check)
            assert result["failed"] and "specswap_results_dir: results cannot be kept in" in result["msg"], result


def test_check_mode_makes_no_folder_for_results(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path
) -> None:
    args = {"services": services, **COMPARE, "results_dir": str(tmp_path / "new")}
    result, _ = run_action(monkeypatch, comparison.ActionModule, args, check=True)
    assert result["changed"] and not (tmp_path / "new").exists()


def test_a_result_that_cannot_be_fetched_is_named_with_its_place_on_the_host(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path
) -> None:
    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        if command.startswith("cat "):
            return 1, "", "cat: Input/output error"
        return host("compared", 0)(command, data)

    args = {"services": services, **COMPARE, "results_dir": str(tmp_path)}
    result, _ = run_action(monkeypatch, comparison.ActionModule, args, shell=answer)
    assert result["failed"] and "Input/output error" in result["msg"]
    assert "/var/lib/specswap/smoke/sessions/" in result["msg"] and "ansible.builtin.fetch" in result["msg"]


def test_a_refused_comparison_changed_nothing_and_has_no_result(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path
) -> None:
    args = {"services": services, **COMPARE, "results_dir": str(tmp_path)}
    result, _ = run_action(monkeypatch, comparison.ActionModule, args, shell=host("refused", 5))
    assert (result["changed"], result["failed"]) == (False, True)
    assert "come home" not in result["msg"]


def test_a_block_is_measured_by_the_host_under_its_lock(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path
) -> None:
    """What is filed is what the host proved to have answered, never what the controller read before."""
    commands = []
    figures = {"e2e_tok_per_s": 5.0, "decode_tok_per_s": 6.0, "ttft_s": 0.1, "requests": 1, "failed": 0}
    summary = {**figures, "draft_n": 48, "draft_n_accepted": 47}
    proven = {"slot": "smoke", "variant": "ngram", "plan_hash": "0" * 12, "identity": "i", "tiers": [0, 1, 2, 3]}

    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        commands.append(command)
        assert json.loads(data or b"")["prompts"], "the suite does not travel"
        return 0, json.dumps({"schema": 1, **proven, "block": {"summary": summary, "requests": []}}), ""

    args = {"services": services, "release_path": COMPARE["release_path"], "results_dir": str(tmp_path)}
    result, said = run_action(monkeypatch, bench_block.ActionModule, args, shell=answer)
    assert not result.get("failed"), result
    assert len(commands) == 1 and commands[0].startswith("/usr/local/bin/specswap-host block --slot smoke --release ")
    kept = json.loads(Path(result["results"]).read_text())
    assert (kept["variant"], kept["tiers"], kept["host"]) == ("ngram", [0, 1, 2, 3], "ct200")
    assert said[0].startswith("ngram: ")


def test_a_busy_slot_is_not_measured(
    monkeypatch: pytest.MonkeyPatch, services: list[dict[str, Any]], tmp_path: Path
) -> None:
    def busy(command: str, data: bytes | None) -> tuple[int, str, str]:
        return (
            5,
            '{"refused": "x", "owner": {}}\n',
            "specswap-host: refused: slot smoke is held by ops@laptop, job j0\n",
        )

    args = {"services": services, "release_path": COMPARE["release_path"], "results_dir": str(tmp_path)}
    result, _ = run_action(monkeypatch, bench_block.ActionModule, args, shell=busy)
    assert result["failed"] and "held by ops@laptop, job j0" in result["msg"]
    assert not (tmp_path / "blocks").exists()


def status_of(**slots: Any) -> Any:
    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        return (
            0,
            json.dumps({"schema": 1, "slots": {name: {"slot": name, "active": s} for name, s in slots.items()}}),
            "",
        )

    return answer


@pytest.mark.parametrize("check", [False, True])
def test_nothing_is_prepared_where_there_is_nothing_to_measure(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    def ask(shell: Any, require: str) -> dict[str, Any]:
        result, said = run_action(monkeypatch, slot_status.ActionModule, {"require": require}, shell=shell, check=check)
        assert not said
        return result

    assert "site.yml" in ask(bare, "registered")["msg"]
    assert "no slot yet" in ask(status_of(), "registered")["msg"]
    assert "smoke serves nothing" in ask(status_of(smoke=None), "active")["msg"]
    assert not ask(status_of(smoke=None), "registered").get("failed")
    assert not ask(status_of(smoke={"variant": "ngram"}), "active").get("failed")


def test_a_slot_that_the_inventory_dropped_does_not_fail_the_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever stops it as the warning says would else never see site.yml succeed again."""
    monkeypatch.setattr(slot_status, "status_text", lambda slot: slot["slot"])
    served = {"slot": "smoke", "active": {}, "agree": True, "reasons": []}
    gone = {"slot": "gone", "active": {}, "agree": False, "reasons": ["x is inactive/dead"]}

    def answer(command: str, data: bytes | None) -> tuple[int, str, str]:
        return 1, json.dumps({"schema": 1, "slots": {"smoke": served, "gone": gone}}), ""

    args = {"must_agree": True, "declared": ["smoke"]}
    assert not run_action(monkeypatch, slot_status.ActionModule, args, shell=answer)[0].get("failed")
    for declared in (None, ["gone"]):
        args["declared"] = declared
        result, _ = run_action(monkeypatch, slot_status.ActionModule, args, shell=answer)
        assert result["failed"] and "disagree in slot gone: x is inactive/dead" in result["msg"]


def check_inventory(monkeypatch: pytest.MonkeyPatch, data: dict[str, Any], **args: Any) -> dict[str, Any]:
    result, _ = run_action(monkeypatch, inventory_check.ActionModule, {"inventory": data, **args})
    return result


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"pairs": "0"}, "pairs: must be a whole number"),
        ({"pairs": "many"}, "pairs: must be a whole number"),
        ({"pairs": True}, "pairs: must be a whole number"),
        ({"results_dir": "/etc/hostname"}, "specswap_results_dir: results cannot be kept in /etc/hostname"),
    ],
    ids=str,
)
def test_what_a_play_is_given_is_checked_before_contact(
    monkeypatch: pytest.MonkeyPatch, args: dict[str, Any], words: str
) -> None:
    assert not check_inventory(monkeypatch, inventory()).get("failed")
    assert words in check_inventory(monkeypatch, inventory(), **args)["msg"]


def test_a_slot_must_be_named_where_a_play_is_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    data = inventory(slots__second={"port": 30002, "variant": "ngram"})
    assert not check_inventory(monkeypatch, data).get("failed")
    assert "there are several" in check_inventory(monkeypatch, data, require="slot")["msg"]


def test_what_no_unit_can_carry_is_refused_before_contact(monkeypatch: pytest.MonkeyPatch) -> None:
    result = check_inventory(monkeypatch, inventory(variants__ngram__env={"A": "\x1b[31m"}))
    assert "specswap_variants.ngram in slot smoke: control characters cannot stand in a unit file" in result["msg"]


def lacking_host(name: str, args: Any) -> dict[str, Any]:
    """A host that has neither releases nor models."""
    wheels = args.get("wheels") or {args.get("wheel"): ""}
    return {"changed": True, "diff": {"before": "absent", "after": "built"}, "missing": sorted(wheels)}


@pytest.mark.parametrize("torn", [False, True], ids=["no wheelhouse", "a wheel is gone"])
@pytest.mark.parametrize("check", [False, True])
def test_check_fails_where_the_wheels_are_missing_that_the_run_needs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, check: bool, torn: bool
) -> None:
    root = collection_root(tmp_path / "root")
    house = tmp_path / "house"
    release = resolve.releases(inventory(), root)[0]
    model = resolve.models(inventory(), root)[0]
    if torn:
        for folder in (release["lock_hash"], venv_release.uv_hash(), model["wheel_sha256"][:12]):
            (house / folder).mkdir(parents=True)
            (house / folder / "index.json").write_text(json.dumps({f"{folder}.whl": {"sha256": "0", "size": 1}}))
    for plugin, args in ((venv_release, {"release": release}), (model_store, {"model": model})):
        given = {**args, "wheelhouse": str(house)}
        result, _ = run_action(monkeypatch, plugin.ActionModule, given, module=lacking_host, check=check)
        assert result["failed"] and "Fetch it with ./specswap wheelhouse" in result["msg"], result


def test_a_slot_that_the_inventory_dropped_and_still_serves_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slots = {
        "gone": {"active": "ngram", "wanted": None, "needs_swap": False, "reason": "stop and disable x by hand"},
        "empty": {"active": None, "wanted": None, "needs_swap": False, "reason": "no longer described"},
        "smoke": {"active": "ngram", "wanted": "ngram", "needs_swap": False, "reason": "serves as wanted"},
    }
    answer = {"changed": False, "diff": [], "slots": slots}
    monkeypatch.setattr(service_units.units, "apply_services", lambda spec, check: answer)
    warnings: list[str] = []
    monkeypatch.setattr(service_units.AnsibleModule, "warn", lambda self, text: warnings.append(text))
    with patch_module_args({"services": [], "wanted": {}}), pytest.raises(SystemExit):
        service_units.main()
    (warning,) = warnings
    assert warning.startswith("Slot gone: stop and disable x by hand, and move /var/lib/specswap/gone away")


def test_unknown_variables_of_ours_are_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    data = inventory()
    for name, wrong in (("specswap_slots", False), ("specswap_services", False), ("specswap_slot", True)):
        result, _ = run_action(
            monkeypatch, inventory_check.ActionModule, {"inventory": data}, variables={name: {}, "other": 1}
        )
        assert bool(result.get("failed")) is wrong, (name, result)
    assert "specswap_slot: unknown variable. Did you mean specswap_slots? Known: " in result["msg"]


def test_the_command_of_a_comparison_finds_the_host_again(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"inventory": (str(Path.cwd() / "inventory"), "/etc/other hosts.yml", "a,b"), "args": ("compare.yml",)}
    monkeypatch.setattr(context, "CLIARGS", given)
    plugin = object.__new__(comparison.ActionModule)
    plugin.host = "box1"
    options = {"suite": "code", "pairs": 4, "quick": True}
    assert plugin._driver(["a", "b"], "smoke", options)["command"] == (
        "ansible-playbook -i inventory -i '/etc/other hosts.yml' -i a,b -l box1 compare.yml"
        " -e arms=a,b -e slot=smoke -e suite=code -e pairs=4 -e quick=true"
    )
