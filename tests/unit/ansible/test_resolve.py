"""Inventory data -> services: what comes out, and that everything wrong is named with its key path."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.specswap.core.plugins.plugin_utils import resolve
from ansible_collections.specswap.core.plugins.plugin_utils.checks import InventoryError, looks_secret
from inventory_data import LOCK, collection_root, inventory


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return collection_root(tmp_path)


def problems(data: dict[str, Any], root: Path) -> list[str]:
    with pytest.raises(InventoryError) as caught:
        resolve.services(data, root)
    return caught.value.problems


def one(data: dict[str, Any], root: Path, variant: str) -> dict[str, Any]:
    return resolve.pick(resolve.services(data, root), variant)


def test_service_holds_what_the_contract_says(root: Path) -> None:
    service = one(inventory(), root, "ngram")
    assert service["unit"] == "llamacpp-ngram-smoke.service"
    assert service["rivals"] == ["llamacpp-baseline-smoke.service"]
    assert service["slot"] == {"name": "smoke", "port": 30001, "bind": "127.0.0.1", "gpus": []}
    assert service["models"]["target"]["path"] == f"/opt/specswap/models/smollm2-{'a' * 12}/SmolLM2.gguf"
    assert service["release_path"] == f"/opt/specswap/envs/{service['release']}"
    assert service["identity"] == f"smollm2@smoke.ngram.{service['plan_hash']}"
    assert service["settings"] == {"speculative_type": "ngram-simple"}
    assert service["claims"] == {"drafts": True}
    assert set(service["budgets"]) == set(resolve.BUDGETS)
    assert set(service["gate"]) == set(resolve.GATE) and service["gate"]["tok_floor"] == 0.2
    assert service["argv"][service["argv"].index("--drain-s") + 1] == "10"
    json.dumps(service)


def test_argv_maps_every_key_and_serves_both_names(root: Path) -> None:
    service = one(inventory(variants__ngram__raw_args=["--log-colors", "off"]), root, "ngram")
    argv = service["argv"]
    assert argv[0] == f"{service['release_path']}/bin/python"
    assert argv[1] == service["launcher"]["path"]
    assert argv[argv.index("--spec-ngram-size-n") + 1] == "12"
    assert argv[argv.index("--ctx") + 1] == "4096"
    aliases = [argv[index + 1] for index, word in enumerate(argv) if word == "--alias"]
    assert aliases == ["smollm2", service["identity"]]
    assert argv[-2:] == ["--log-colors", "off"]


def test_extends_merges_deeply_and_null_removes(root: Path) -> None:
    data = inventory(variants__third={"extends": "ngram", "args": {"ctx": 512, "threads": None}, "env": {"B": "2"}})
    service = one(data, root, "third")
    argv = service["argv"]
    assert argv[argv.index("--ctx") + 1] == "512"
    assert "--threads" not in argv
    assert argv[argv.index("--spec-type") + 1] == "ngram-simple"
    assert service["env"] == {"A": "1", "B": "2"}


def test_resolution_is_the_same_twice_and_plan_hash_can_be_checked(root: Path) -> None:
    first, second = one(inventory(), root, "baseline"), one(inventory(), root, "baseline")
    assert first == second
    assert resolve.plan_hash(first) == first["plan_hash"]


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"budgets__load_s": 5}, True),
        ({"budgets__drain_s": 5}, False),  # a flag of the launcher: the running process has to be told
        ({"gate": {"tok_floor": 0.9}}, True),
        ({"variants__baseline__gate": {"canary": False}}, True),
        ({"variants__other": {"extends": "baseline", "args": {"ctx": 100}}}, True),
        ({"variants__baseline__args__ctx": 100}, False),
        ({"variants__baseline__env__A": "2"}, False),
        ({"slots__smoke__port": 30002}, False),
        ({"models__smollm2__sha256": "c" * 64}, False),
    ],
)
def test_plan_hash_follows_what_serves_and_nothing_else(root: Path, changes: dict[str, Any], same: bool) -> None:
    before, after = one(inventory(), root, "baseline"), one(inventory(**changes), root, "baseline")
    assert (before["plan_hash"] == after["plan_hash"]) is same


def test_new_launcher_and_new_lock_change_the_plan(root: Path) -> None:
    before = one(inventory(), root, "baseline")
    (root / "engines/llamacpp/serve.py").write_text("print(1)\n")
    launcher = one(inventory(), root, "baseline")
    assert launcher["launcher"]["name"] != before["launcher"]["name"]
    (root / "locks/venv_llamacpp/cpu-py311-glibc2.28.txt").write_text(LOCK.replace("==2026", "==2027"))
    release = one(inventory(), root, "baseline")
    assert release["release"] != launcher["release"]
    assert len({before["plan_hash"], launcher["plan_hash"], release["plan_hash"]}) == 3


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"slots__smoke__prot": 1}, "specswap_slots.smoke.prot: unknown key. Did you mean port? Known:"),
        ({"slots__smoke__port": "30001"}, "specswap_slots.smoke.port: must be a whole number"),
        ({"slots__smoke__port": 80}, "specswap_slots.smoke.port: must be a whole number"),
        ({"slots__smoke__variant": "basline"}, "unknown variant basline. Did you mean baseline?"),
        ({"slots__smoke__variants": ["nope"]}, "specswap_slots.smoke.variants[0]: unknown variant."),
        ({"slots__smoke__bind": "0.0.0.0"}, "specswap_slots.smoke.bind: 0.0.0.0 can be reached"),
        ({"slots__smoke__bind": "localhost"}, "specswap_slots.smoke.bind: must be an IP address"),
        ({"slots__smoke__gpus": [-1]}, "specswap_slots.smoke.gpus: must be a list"),
        ({"slots__other": {"port": 30001, "variant": "ngram"}}, "30001 is also the port of slot smoke"),
        ({"slots__Smoke-1": {"port": 1, "variant": "x"}}, "specswap_slots.Smoke-1: names are made of"),
        ({"variants__ngram__extends": "ngram"}, "specswap_variants.ngram: extends itself: ngram -> ngram"),
        ({"variants__baseline__extends": "ngram"}, "extends itself: baseline -> ngram -> baseline"),
        ({"variants__ngram__extends": "nope"}, "specswap_variants.ngram.extends: unknown variant nope."),
        ({"variants__ngram__argz": {}}, "specswap_variants.ngram.argz: unknown key. Did you mean args?"),
        ({"variants__ngram__args__spec_typ": "x"}, "specswap_variants.ngram.args.spec_typ: unknown argument"),
        ({"variants__ngram__args__spec_type": "magic"}, "'magic' is no speculative type"),
        ({"variants__ngram__args__threads": True}, "specswap_variants.ngram.args.threads: must be a whole number"),
        ({"variants__baseline__args__spec_ngram_size_n": 4}, "spec_ngram_size_n: needs spec_type"),
        ({"variants__baseline__model": "nope"}, "specswap_variants.baseline.model: unknown model nope."),
        ({"variants__baseline__draft": "smollm2"}, "engine llamacpp takes no draft model"),
        ({"variants__baseline__environment": "nope"}, "environment: unknown environment nope."),
        ({"variants__baseline__env__A": [1]}, "specswap_variants.baseline.env.A: must be a string"),
        ({"variants__baseline__env__A-B": "1"}, "specswap_variants.baseline.env.A-B: is no name"),
        ({"variants__baseline__budgets__load": 1}, "budgets.load: unknown key. Did you mean load_s?"),
        ({"variants__ngram__gate": {"tok_flor": 0.1}}, "gate.tok_flor: unknown key. Did you mean tok_floor?"),
        ({"gate": {"tok_floor": 2}}, "specswap_gate.tok_floor: expected a number from 0 to 1, got 2."),
        ({"slots__goldens": {"port": 30002, "variant": "ngram"}}, "specswap_slots.goldens: is a folder of specswap's"),
        ({"budgets__load_s": "x"}, "specswap_budgets.load_s: must be a number of seconds"),
        ({"environments__venv_llamacpp__engine": "lamacpp"}, "unknown engine lamacpp. Did you mean llamacpp?"),
        ({"environments__venv_llamacpp__python": 3.11}, "python: must be a quoted string"),
        ({"environments__venv_llamacpp__cuda": "auto"}, "cuda: engine llamacpp runs on the CPU"),
        ({"environments__venv_llamacpp__python": "3.12"}, "no lock locks/venv_llamacpp/cpu-py312-glibc2.28.txt"),
        ({"environments__venv_llamacpp__requirements": {"xllamacpp": "1"}}, "the inventory wants 1,"),
        ({"environments__venv_bench": {"engine": "llamacpp", "python": "3.11", "cuda": "none"}}, "is a built-in"),
        ({"models__smollm2__source": "hf"}, "specswap_models.smollm2.source: unknown source hf."),
        ({"models__smollm2__sha256": "A" * 64}, "specswap_models.smollm2.sha256: must be a SHA-256"),
        ({"models__smollm2__member": None}, "specswap_models.smollm2.member: is required"),
        ({"variants__ngram__env": {"HF_TOKEN": "hush"}}, "specswap_variants.ngram.env.HF_TOKEN: carries a secret"),
        ({"variants__ngram__env": {"OPENAI_API_KEY": "hush"}}, "OPENAI_API_KEY: carries a secret"),
        ({"variants__ngram__raw_args": ["--api-key", "hush"]}, "raw_args[0]: --api-key carries a secret"),
        ({"variants__ngram__raw_args": ["-v", "--admin-api-key=hush"]}, "raw_args[1]: --admin-api-key carries"),
        ({"modelz": {}}, "inventory.modelz: unknown key. Did you mean models?"),
        ({"allow_remote_bind": "ja"}, "specswap_allow_remote_bind: must be true or false, not 'ja'"),
        ({"serial": "abc"}, "specswap_serial: must be numbers of hosts or percentages"),
        ({"serial": [1, "120%"]}, "specswap_serial: must be numbers of hosts or percentages"),
        ({"budgets__load_s": 1e308}, "specswap_budgets.load_s: must be a number of seconds below"),
        ({"budgets__load_s": float("inf")}, "specswap_budgets.load_s: must be a number of seconds below"),
        ({"budgets__load_s": float("nan")}, "specswap_budgets.load_s: must be a number of seconds below"),
        ({"slots__smoke__gpus": [True]}, "specswap_slots.smoke.gpus: must be a list of GPU numbers"),
        ({"slots__smoke__gpus": [0, 0]}, "specswap_slots.smoke.gpus: names a GPU twice"),
        ({"slots__smoke__variants": ["baseline", "baseline"]}, "smoke.variants[1]: baseline is listed twice"),
        ({"slots__" + "s" * 230: {"port": 1, "variant": "x"}}, "names have at most 64 characters, this one has 230"),
        ({"variants__baseline__model": ""}, "specswap_variants.baseline.model: must be a non-empty string"),
        ({"variants__ngram__raw_args": ["--host", "0.0.0.0"]}, "raw_args[0]: --host is made from the slot's bind"),
        ({"variants__ngram__raw_args": ["--x", "--port=1"]}, "raw_args[1]: --port=1 is made from the slot's port"),
        ({"variants__ngram__raw_args": ["--alias", "x"]}, "raw_args[0]: --alias is made from the variant's served"),
        ({"variants__ngram__raw_args": ["--model", "/x"]}, "raw_args[0]: --model is made from the variant's model"),
        ({"variants__ngram__raw_args": ["--drain-s", "9"]}, "raw_args[0]: --drain-s is made from budgets.drain_s"),
        ({"variants__ngram__raw_args": ["--spec-type", "none"]}, "raw_args[0]: --spec-type is made from args.spec_ty"),
        ({"variants__ngram__raw_args": [True]}, "specswap_variants.ngram.raw_args: must be a list of strings"),
    ],
)
def test_every_mistake_is_named_with_its_path(root: Path, changes: dict[str, Any], expected: str) -> None:
    found = problems(inventory(**changes), root)
    assert any(expected in line for line in found), found


def test_all_mistakes_are_told_at_once(root: Path) -> None:
    found = problems(inventory(slots__smoke__prot=1, variants__ngram__args__x=1, models__smollm2__size=0), root)
    assert len(found) == 3


def test_an_unknown_ancestor_is_told_once_whatever_extends_it(root: Path) -> None:
    data = inventory(variants__ngram__extends="nope", variants__third={"extends": "ngram"})
    assert len(problems(data, root)) == 1


def test_a_chain_of_thousands_of_variants_is_resolved(root: Path) -> None:
    data = inventory()
    names = ["ngram", *(f"v{number}" for number in range(3000))]
    # The longest chain first: the reading must not depend on ancestors being read before.
    data["variants"] = {
        **{child: {"extends": parent} for parent, child in reversed(list(itertools.pairwise(names)))},
        **data["variants"],
    }
    assert one(data, root, "v2999")["settings"] == {"speculative_type": "ngram-simple"}


def test_every_flag_that_a_command_line_holds_is_owned(root: Path) -> None:
    """A flag that comes twice wins over what was checked: none of those made here may be left out of the refusal."""
    words = {word for word in one(inventory(), root, "ngram")["argv"] if word.startswith("--")}
    for word in words:
        found = problems(inventory(variants__ngram__raw_args=[word, "1"]), root)
        assert any(f"raw_args[0]: {word} is made from" in line for line in found), (word, found)


@pytest.mark.parametrize("serial", [1, "2", "50%", [1, "25%", "100%"], None])
def test_batches_as_ansible_takes_them(root: Path, serial: Any) -> None:
    assert resolve.services(inventory(serial=serial), root)


@pytest.mark.parametrize("allowed", [True, "true", "True", "yes"])
def test_remote_bind_when_allowed(root: Path, allowed: Any) -> None:
    service = one(inventory(slots__smoke__bind="0.0.0.0", allow_remote_bind=allowed), root, "baseline")
    assert service["slot"]["bind"] == "0.0.0.0"


def test_secrets_are_never_repeated(root: Path) -> None:
    data = inventory(variants__ngram__raw_args=["--api-key=hush"], variants__baseline__env={"API_KEY": "hush"})
    found = problems(data, root)
    assert len(found) == 3 and not any("hush" in line for line in found)


@pytest.mark.parametrize(
    "name", ["--max-total-tokens", "--tokenizer-path", "--speculative-token-map", "--stop-token-ids", "KEY", "MONKEY"]
)
def test_what_only_sounds_like_a_secret_passes(name: str) -> None:
    assert not looks_secret(name)


def test_a_lock_without_hashes_is_named(root: Path) -> None:
    (root / "locks/venv_llamacpp/cpu-py311-glibc2.28.txt").write_text("xllamacpp==1\n")
    assert any("cpu-py311-glibc2.28.txt: not an exact pin" in line for line in problems(inventory(), root))


def test_slot_may_hold_some_variants_only(root: Path) -> None:
    data = inventory(slots__second={"port": 30002, "variant": "ngram", "variants": ["ngram"]})
    units = [service["unit"] for service in resolve.services(data, root)]
    assert units == [
        "llamacpp-baseline-smoke.service",
        "llamacpp-ngram-smoke.service",
        "llamacpp-ngram-second.service",
    ]


def test_pick_lists_what_is_known(root: Path) -> None:
    services = resolve.services(inventory(), root)
    with pytest.raises(InventoryError, match=r"nram is no variant of slot smoke. Did you mean ngram\? Known: baseline"):
        resolve.pick(services, "nram")
    with pytest.raises(InventoryError, match=r"smok is no slot of this host. Did you mean smoke\? Known: smoke"):
        resolve.pick(services, "ngram", "smok")
    with pytest.raises(InventoryError, match="variant: is required"):
        resolve.pick(services, "")


def test_slot_must_be_named_when_there_are_two(root: Path) -> None:
    services = resolve.services(inventory(slots__second={"port": 30002, "variant": "ngram"}), root)
    with pytest.raises(InventoryError, match="there are several"):
        resolve.pick(services, "ngram")
    assert resolve.pick(services, "ngram", "second")["slot"]["port"] == 30002


@pytest.mark.parametrize("names", ["baseline,ngram", "baseline, ngram", ["baseline", "ngram"]])
def test_arms_from_text_or_list(root: Path, names: Any) -> None:
    assert resolve.arms(resolve.services(inventory(), root), names) == ["baseline", "ngram"]


@pytest.mark.parametrize("names", ["baseline", "baseline,baseline", [], ["a", "b", "c"], None])
def test_arms_must_be_two_different(root: Path, names: Any) -> None:
    with pytest.raises(InventoryError, match="two different variants"):
        resolve.arms(resolve.services(inventory(), root), names)


def test_releases_and_models_that_are_used(root: Path) -> None:
    data = inventory(models__unused={**inventory()["models"]["smollm2"], "sha256": "d" * 64})
    assert [release["environment"] for release in resolve.releases(data, root)] == ["venv_llamacpp"]
    assert [model["name"] for model in resolve.models(data, root)] == ["smollm2"]
    bench = resolve.releases(data, root, built_in="venv_bench")[0]
    assert bench["release"].startswith("venv_bench-")
    assert bench["path"] == f"/opt/specswap/envs/{bench['release']}"


def test_libraries_of_the_engines_in_use(root: Path) -> None:
    assert resolve.libraries(inventory(), root) == {"libgomp.so.1": "libgomp1"}
    assert resolve.libraries({}, root) == {}


def test_wanted(root: Path) -> None:
    assert resolve.wanted(inventory(), root) == {"smoke": "baseline"}
