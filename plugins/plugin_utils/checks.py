"""Checks over inventory data that collect every problem, each with its key path, before any host is touched."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Any

NAME = re.compile(r"[a-z0-9_]+")
# A unit's file name holds two of them, and a file name has at most 255 bytes.
MAX_NAME = 64


class InventoryError(ValueError):
    """The inventory cannot be resolved. `problems` holds one line per finding, each starting with a key path."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems = list(problems)
        bullet = "- " if len(self.problems) > 1 else ""
        super().__init__("\n".join(bullet + problem for problem in self.problems))


def known(word: str, names: Iterable[str]) -> str:
    """The tail of an error about an unknown `word`: the nearest of `names`, if any is near, and all of them."""
    names = sorted(names)
    near = difflib.get_close_matches(word, names, n=1)
    guess = f" Did you mean {near[0]}?" if near else ""
    return f"{guess} Known: {', '.join(names) or 'none'}."


_SECRETS = re.compile(r"(api|access|private|secret|admin)_?key|secret|passw(or)?d|credential|(^|_)token$")


def looks_secret(name: str) -> bool:
    """Whether a flag or an environment variable of that name carries a secret; `--max-total-tokens` does not."""
    return _SECRETS.search(name.lower().replace("-", "_")) is not None


def plain(value: Any) -> Any:
    """A copy made of plain dicts, lists and scalars: Ansible hands over lazy containers and tagged strings."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    for kind in (int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


class Checker:
    """Reads typed values out of mappings and collects what is wrong instead of stopping at the first finding."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def say(self, path: str, text: str) -> None:
        self.problems.append(f"{path}: {text}")

    def raise_if_any(self) -> None:
        if self.problems:
            raise InventoryError(self.problems)

    def mapping(self, value: Any, path: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self.say(path, f"must be a mapping, not {type(value).__name__}.")
            return {}
        return value

    def names(self, value: Any, path: str) -> dict[str, Any]:
        """A mapping whose keys are names of ours, since they become unit, file and host names."""
        mapping = self.mapping(value, path)
        for name in mapping:
            if not NAME.fullmatch(name):
                self.say(f"{path}.{name}", "names are made of a-z, 0-9 and _ only.")
            elif len(name) > MAX_NAME:
                self.say(
                    f"{path}.{name[:16]}...", f"names have at most {MAX_NAME} characters, this one has {len(name)}."
                )
        return {name: item for name, item in mapping.items() if NAME.fullmatch(name) and len(name) <= MAX_NAME}

    def keys(self, mapping: Mapping[str, Any], path: str, allowed: Iterable[str], required: Iterable[str] = ()) -> None:
        allowed = list(allowed)
        for key in mapping:
            if key not in allowed:
                self.say(f"{path}.{key}", f"unknown key.{known(key, allowed)}")
        for key in required:
            if mapping.get(key) is None:
                self.say(f"{path}.{key}", "is required.")

    def text(self, mapping: Mapping[str, Any], key: str, path: str, default: str = "") -> str:
        value = mapping.get(key)
        if value is None:
            return default
        if not isinstance(value, str) or not value:
            self.say(f"{path}.{key}", f"must be a non-empty string, not {value!r}.")
            return default
        return value

    def integer(self, mapping: Mapping[str, Any], key: str, path: str, low: int, high: int, default: int = 0) -> int:
        value = mapping.get(key)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.say(f"{path}.{key}", f"must be a whole number from {low} to {high}, not {value!r}.")
            return default
        return value

    def boolean(self, value: Any, path: str) -> bool:
        """True or false, also as the text that `-e key=true` makes of it; nothing is false."""
        word = "false" if value is None else str(value).lower()
        if word not in ("true", "yes", "on", "1", "false", "no", "off", "0"):
            self.say(path, f"must be true or false, not {value!r}.")
        return word in ("true", "yes", "on", "1")

    def digest(self, mapping: Mapping[str, Any], key: str, path: str) -> str:
        value = self.text(mapping, key, path)
        if value and not re.fullmatch(r"[0-9a-f]{64}", value):
            self.say(f"{path}.{key}", "must be a SHA-256 of 64 lower-case hexadecimal digits.")
        return value

    def strings(self, value: Any, path: str) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(
            isinstance(item, (str, int, float)) and not isinstance(item, bool) for item in value
        ):
            self.say(path, "must be a list of strings.")
            return []
        return [str(item) for item in value]
