"""Plans are read strictly, and every error names the path of its key."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from host_doubles import service_dict
from specswap_host.plan import Plan, PlanError, Service


@pytest.fixture
def data(tmp_path: Path) -> dict[str, Any]:
    service = service_dict(tmp_path, "a")
    return {"schema": 1, "kind": "swap", "job": "j-1", "slot": "smoke", "service": service, "controller": {}}


def put(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(data)
    *parents, last = path.split(".")
    target = changed
    for parent in parents:
        target = target[parent]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    return changed


def test_round_trip(data: dict[str, Any]) -> None:
    assert Plan.from_dict(data).to_dict() == data
    assert Service.from_dict(data["service"]).to_dict() == data["service"]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("kind", "dance", "kind: unknown kind"),
        ("job", "../x", "job: "),
        ("job", "", "job: "),
        ("slot", "Smoke", "slot: "),
        ("schema", 2, "schema: the plan has schema 2"),
        ("surprise", 1, "surprise: unknown key"),
        ("controller", ..., "controller: missing"),
        ("controller", {"user": 5}, "controller.user: expected a text"),
        ("service", None, "service: expected an object, got null"),
        ("service.slot.port", "30001", "service.slot.port: expected an integer"),
        ("service.slot.port", True, "service.slot.port: expected an integer"),
        ("service.slot.port", 70000, "service.slot.port: 70000 is outside"),
        ("service.slot.gpus", ["0"], "service.slot.gpus: "),
        ("service.slot.name", "other", "service.slot.name: "),
        ("service.unit", "../evil.service", "service.unit: "),
        ("service.argv", [], "service.argv[0]: "),
        ("service.argv", ["/bin/sh", 5], "service.argv[1]: expected a text"),
        ("service.argv", ["python"], "service.argv[0]: "),
        ("service.env", {"A": 1}, "service.env.A: expected a text"),
        ("service.budgets.load_s", -1, "service.budgets.load_s: "),
        ("service.budgets.load_s", ..., "service.budgets.load_s: missing"),
        ("service.budgets.patience", 1, "service.budgets.patience: unknown key"),
        ("service.models.target.size", "3", "service.models.target.size: "),
        ("service.models.target.path", "m.gguf", "service.models.target.path: expected an absolute path"),
        ("service.schema", 2, "service.schema: the service has schema 2"),
        ("service.rivals", ["no-unit"], "service.rivals[0]: "),
        ("service.unit_text", ..., "service.unit_text: missing"),
    ],
)
def test_errors_name_the_path(data: dict[str, Any], path: str, value: Any, message: str) -> None:
    with pytest.raises(PlanError) as caught:
        Plan.from_dict(put(data, path, value))
    assert str(caught.value).startswith(message)


def test_newer_schema_says_what_to_do(data: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=r"site\.yml"):
        Plan.from_dict({**data, "schema": 7})


def compare(tmp_path: Path) -> dict[str, Any]:
    return {
        "schema": 1,
        "kind": "compare",
        "job": "j",
        "slot": "smoke",
        "arms": ["a", "b"],
        "services": {"a": service_dict(tmp_path, "a"), "b": service_dict(tmp_path, "b")},
        "pairs": 2,
        "quick": False,
        "suite": {"name": "story", "prompts": [], "warmup": []},
        "request": {"max_tokens": 256},
        "runner": ["/usr/bin/python3", "-m", "specswap_bench", "run-session"],
        "controller": {},
    }


def test_compare_round_trip_and_swap_to(tmp_path: Path) -> None:
    data = compare(tmp_path)
    plan = Plan.from_dict(data)
    assert plan.to_dict() == data
    step = plan.swap_to(plan.services["b"])
    assert (step.kind, step.job, step.service) == ("swap", "j", plan.services["b"])


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("arms", ["a"], "arms: "),
        ("arms", ["a", "a"], "arms: "),
        ("arms", ["a", "c"], "services.c: missing"),
        ("pairs", 0, "pairs: "),
        ("quick", 1, "quick: "),
        ("runner", ["python"], r"runner\[0\]: "),
    ],
)
def test_compare_errors(tmp_path: Path, key: str, value: Any, message: str) -> None:
    with pytest.raises(PlanError, match=message):
        Plan.from_dict({**compare(tmp_path), key: value})
