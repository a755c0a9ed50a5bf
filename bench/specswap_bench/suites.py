"""Prompt suites: JSON Lines of `{"id", "category", "turns": [...], "max_tokens"}`.

`prompts/<name>.jsonl` holds the measured prompts, `prompts/<name>.warmup.jsonl` the warm-up prompts. They must be
others: a prompt seen before is partly served from a cache and would be measured faster than it is.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# The folder must not be called "suites": Ansible's loader finds a folder before a module of the same name.
SUITES_DIR = Path(__file__).resolve().parent / "prompts"
_KEYS = ("id", "category", "turns", "max_tokens")


class SuiteError(ValueError):
    """A suite cannot be used; the text names the file and the line."""


@dataclass(frozen=True)
class Prompt:
    """One conversation: `turns` are the user's messages, `max_tokens` the limit of each reply."""

    id: str
    category: str
    turns: tuple[str, ...]
    max_tokens: int = 256

    @classmethod
    def from_dict(cls, data: Any, where: str) -> Prompt:
        """Errors: SuiteError starting with `where`."""
        if not isinstance(data, dict):
            raise SuiteError(f"{where}: a prompt must be an object with the keys {', '.join(_KEYS)}")
        for key in data:
            if key not in _KEYS:
                raise SuiteError(f"{where}: unknown key {key!r}; known: {', '.join(_KEYS)}")
        name, turns, limit = data.get("id"), data.get("turns"), data.get("max_tokens", 256)
        if not isinstance(name, str) or not name:
            raise SuiteError(f'{where}: "id" must be a non-empty text')
        if not name.isprintable():
            raise SuiteError(f'{where}: "id" must not hold control characters: {name!r}')
        if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
            raise SuiteError(f'{where}: "turns" must be a non-empty list of non-empty texts')
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise SuiteError(f'{where}: "max_tokens" must be a whole number above 0')
        category = data.get("category", "")
        if not isinstance(category, str) or not category.isprintable():
            raise SuiteError(f'{where}: "category" must be a text without control characters, not {category!r}')
        return cls(name, category, tuple(turns), limit)

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in the suite file."""
        return {"id": self.id, "category": self.category, "turns": list(self.turns), "max_tokens": self.max_tokens}


@dataclass(frozen=True)
class Suite:
    """Measured prompts in order, and warm-up prompts that are never measured."""

    name: str
    prompts: tuple[Prompt, ...]
    warmup: tuple[Prompt, ...]

    def __post_init__(self) -> None:
        if not self.name.isprintable():
            raise SuiteError(f"suite {self.name!r}: a name must not hold control characters")
        if not self.prompts:
            raise SuiteError(f"suite {self.name}: it has no prompts")
        ids = [prompt.id for prompt in self.prompts]
        for name in ids:
            if ids.count(name) > 1:
                raise SuiteError(f"suite {self.name}: the id {name!r} stands for two prompts")
        measured = {turn for prompt in self.prompts for turn in prompt.turns}
        for prompt in self.warmup:
            if measured.intersection(prompt.turns):
                raise SuiteError(f"suite {self.name}: warm-up prompt {prompt.id!r} is also measured; take another text")

    @property
    def sha256(self) -> str:
        """Hex SHA-256 over the canonical JSON of all prompts: equal suites, equal digest."""
        data = [[prompt.to_dict() for prompt in part] for part in (self.prompts, self.warmup)]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode("utf-8")).hexdigest()

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], where: str = "suite") -> Suite:
        """A plan's suite; without prompts it is the shipped suite of that name. Errors: SuiteError."""
        name = data.get("name")
        if not isinstance(name, str) or not name:
            raise SuiteError(f"{where}.name: must be a non-empty text")
        if not data.get("prompts"):
            return load_suite(name)
        prompts = _prompts(data["prompts"], f"{where}.prompts")
        return cls(name, prompts, _prompts(data.get("warmup") or [], f"{where}.warmup"))

    def to_dict(self) -> dict[str, Any]:
        """JSON form, as in a plan."""
        return {
            "name": self.name,
            "prompts": [prompt.to_dict() for prompt in self.prompts],
            "warmup": [prompt.to_dict() for prompt in self.warmup],
        }


def _prompts(rows: Any, where: str) -> tuple[Prompt, ...]:
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise SuiteError(f"{where}: must be a list of prompts")
    return tuple(Prompt.from_dict(row, f"{where}[{index}]") for index, row in enumerate(rows))


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """Prompts of one JSON Lines file; empty lines are skipped. Errors: SuiteError naming file and line."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SuiteError(f"{path}: cannot be read: {error}") from error
    prompts = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise SuiteError(f"{path}:{number}: not valid JSON ({error})") from error
        prompts.append(Prompt.from_dict(row, f"{path}:{number}"))
    return tuple(prompts)


def suite_names() -> list[str]:
    """Names of the shipped suites."""
    return sorted(path.name[: -len(".jsonl")] for path in SUITES_DIR.glob("*.jsonl") if "warmup" not in path.name)


def load_suite(name_or_path: str) -> Suite:
    """A shipped suite by name, or a file `NAME.jsonl` (with `NAME.warmup.jsonl` beside it, or the shipped warm-up).

    Errors: SuiteError naming what is known, or the file and the line.
    """
    if name_or_path.endswith(".jsonl") or "/" in name_or_path:
        path = Path(name_or_path)
    else:
        path = SUITES_DIR / f"{name_or_path}.jsonl"
        if not path.exists():
            raise SuiteError(
                f"unknown suite {name_or_path!r}; shipped: {', '.join(suite_names())}; "
                "your own: give the path of a .jsonl file"
            )
    stem = path.name[: -len(".jsonl")] if path.name.endswith(".jsonl") else path.name
    warmup = path.with_name(f"{stem}.warmup.jsonl")
    if not warmup.exists():
        warmup = SUITES_DIR / "story.warmup.jsonl"
    return Suite(stem, load_prompts(path), load_prompts(warmup))
