"""What Ansible does not check itself: specs against defaults, names, documentation beside every filter."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from ansible_collections.specswap.core.filter_plugins import specswap as filters
from ansible_collections.specswap.core.plugins.plugin_utils import resolve

ROOT = Path(__file__).resolve().parents[3]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if (path / "tasks").is_dir())
INVENTORY = ROOT / "inventory"


def load(path: Path) -> dict:
    return yaml.safe_load(path.read_text()) or {}


@pytest.mark.parametrize("role", ROLES)
def test_defaults_and_argument_specs_name_the_same_variables(role: str) -> None:
    path = ROOT / "roles" / role / "defaults/main.yml"
    defaults = load(path) if path.exists() else {}
    options = load(ROOT / "roles" / role / "meta/argument_specs.yml")["argument_specs"]["main"].get("options", {})
    required = {name for name, option in options.items() if option.get("required")}
    assert set(defaults) == set(options) - required
    assert all(name.startswith(f"{role}_") for name in options)
    assert all(option["description"] for option in options.values())
    for name, value in defaults.items():
        if "{{" not in str(value):
            assert options[name]["default"] == value, name


def test_every_filter_has_its_page() -> None:
    pages = {path.stem for path in (ROOT / "filter_plugins").glob("*.yml")}
    assert pages == set(filters.FilterModule().filters())


def test_every_action_plugin_has_a_module_that_documents_it() -> None:
    actions = {path.stem for path in (ROOT / "plugins/action").glob("*.py")}
    modules = {path.stem: path.read_text() for path in (ROOT / "plugins/modules").glob("*.py")}
    assert actions <= set(modules)
    for name, text in modules.items():
        for part in ("DOCUMENTATION", "EXAMPLES", "RETURN"):
            assert f"\n{part} = " in text, f"{name} lacks {part}"


def test_every_playbook_has_an_importer_at_the_root() -> None:
    names = {path.name for path in (ROOT / "playbooks").glob("*.yml")} - {"inventory_check.yml"}
    for name in names:
        (play,) = load(ROOT / name)
        assert play["ansible.builtin.import_playbook"] == f"playbooks/{name}"


@pytest.mark.parametrize("name", ["bench", "compare", "doctor", "rollback", "site", "swap"])
def test_nothing_is_contacted_before_the_inventory_is_checked(name: str) -> None:
    first = load(ROOT / "playbooks" / f"{name}.yml")[0]
    assert first["ansible.builtin.import_playbook"] == "inventory_check.yml"


def test_the_words_of_an_inventory_are_the_same_everywhere() -> None:
    """The resolver's list is the source: plays hand over all of it, and people can read of all of it."""
    handed_over = load(ROOT / "playbooks/vars/specswap.yml")["specswap_inventory"]
    assert list(handed_over) == list(resolve.INVENTORY_KEYS)
    page = (ROOT / "docs/your-own-host.md").read_text()
    fragment = (ROOT / "plugins/doc_fragments/attributes.py").read_text()
    for key in resolve.INVENTORY_KEYS:
        assert f"specswap_{key}" in str(handed_over[key])
        assert f"| `specswap_{key}` |" in page
        assert f"V({key})" in fragment


def test_the_example_inventory_resolves() -> None:
    variables = {**load(INVENTORY / "group_vars/all.yml"), **load(INVENTORY / "group_vars/embedded.yml")}
    data = {key: variables.get(f"specswap_{key}") for key in resolve.INVENTORY_KEYS}
    services = resolve.services(data)
    assert [service["unit"] for service in services] == [
        "llamacpp-baseline-smoke.service",
        "llamacpp-ngram-smoke.service",
    ]
    assert resolve.wanted(data) == {"smoke": "baseline"}
    assert len({service["served_model"] for service in services}) == 1, "clients must not notice a swap"
