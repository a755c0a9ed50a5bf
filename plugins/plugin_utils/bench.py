"""What a comparison is run with, the same for plays and for operators on the host."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import resolve
from .checks import InventoryError
from .specswap_bench.suites import SuiteError, load_suite

MAX_PAIRS = 1000


def suite(name: str) -> dict[str, Any]:
    """A suite as plans carry it, by name or path on the controller. Raises InventoryError naming what is known."""
    try:
        return dict(load_suite(name).to_dict())
    except SuiteError as error:
        raise InventoryError([f"suite: {error}"]) from error


def pairs(value: Any) -> int:
    """Pairs of blocks out of a number or the text that `-e pairs=6` makes of it. Raises InventoryError."""
    text = str(value)
    if isinstance(value, bool) or not re.fullmatch(r"[1-9][0-9]{0,3}", text) or int(text) > MAX_PAIRS:
        raise InventoryError([f"pairs: must be a whole number from 1 to {MAX_PAIRS}, e.g. -e pairs=6, not {value!r}."])
    return int(text)


def results_folder(results_dir: str, make: bool = True) -> Path:
    """Where results go, proven to take a file; empty means the default. With `make` false nothing is created.

    Raises InventoryError: asked for before anything is measured, since a measurement that cannot be kept is lost.
    """
    folder = Path(results_dir) if results_dir else resolve.home() / "results"
    try:
        if make:
            folder.mkdir(parents=True, exist_ok=True)
        present = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        if not present.is_dir():
            raise NotADirectoryError(f"{present} is a file")
        if not os.access(present, os.W_OK | os.X_OK):
            raise PermissionError(f"{present} cannot be written")
        if make:
            with tempfile.TemporaryFile(dir=folder):
                pass
    except OSError as error:
        raise InventoryError(
            [f"specswap_results_dir: results cannot be kept in {folder} ({error}); name a folder that can be written."]
        ) from error
    return folder


def settings(args: Mapping[str, Any]) -> dict[str, Any]:
    """suite, request and runner of a compare plan, out of suite, max_tokens, temperature and release_path."""
    return {
        "suite": suite(args["suite"]),
        "request": {"max_tokens": args["max_tokens"], "temperature": args["temperature"]},
        "runner": [f"{args['release_path']}/bin/python", "-m", "specswap_bench", "run-session"],
    }
