"""What a comparison is run with, the same for plays and for operators on the host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .checks import InventoryError
from .specswap_bench.suites import SuiteError, load_suite


def suite(name: str) -> dict[str, Any]:
    """A suite as plans carry it, by name or path on the controller. Raises InventoryError naming what is known."""
    try:
        return dict(load_suite(name).to_dict())
    except SuiteError as error:
        raise InventoryError([f"suite: {error}"]) from error


def settings(args: Mapping[str, Any]) -> dict[str, Any]:
    """suite, request and runner of a compare plan, out of suite, max_tokens, temperature and release_path."""
    return {
        "suite": suite(args["suite"]),
        "request": {"max_tokens": args["max_tokens"], "temperature": args["temperature"]},
        "runner": [f"{args['release_path']}/bin/python", "-m", "specswap_bench", "run-session"],
    }
