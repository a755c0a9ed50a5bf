"""A service's unit text, from templates/service.j2. Two variants differ in data only, never in the template."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "templates" / "service.j2"


class RenderError(ValueError):
    """The template cannot be read or rendered; names the file."""


def quote_word(word: str, command: bool = True) -> str:
    """One word of a unit file as systemd reads it back unchanged.

    `%` is doubled against specifiers. `$` is doubled only in commands: Environment= does not expand it.
    Raises RenderError for characters that a unit file cannot carry.
    """
    if any((ord(char) < 32 and char not in "\n\t") or ord(char) == 127 for char in word):
        raise RenderError(f"control characters cannot stand in a unit file: {word!r}")
    text = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("\n", "\\n").replace("\t", "\\t")
    if command:
        text = text.replace("$", "$$")
    bare = word and all((char.isalnum() and char.isascii()) or char in "-_./=:,@+%$" for char in word)
    return text if bare else f'"{text}"'


def quote_command(argv: Sequence[str]) -> str:
    """ExecStart= text, one word per continued line, so that a diff shows the flag that changed."""
    if not argv or not argv[0].startswith("/"):
        raise RenderError(f"a unit's command must start with an absolute path, not {argv[:1]!r}")
    if any(not word for word in argv):
        raise RenderError("a unit's command must not hold empty words")
    lines: list[str] = []
    for word in map(quote_word, argv):
        # A flag's value stays on the flag's line.
        if lines and not word.startswith("-") and lines[-1].startswith("-") and " " not in lines[-1]:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return " \\\n  ".join(lines)


def quote_environment(env: Mapping[str, str]) -> list[str]:
    """One Environment= value per variable."""
    return [quote_word(f"{key}={env[key]}", command=False) for key in sorted(env)]


def is_loopback(bind: str) -> bool:
    return ipaddress.ip_address(bind).is_loopback


def render(service: Mapping[str, Any], template: Path = TEMPLATE) -> str:
    """The unit text of `service`."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # the output is a unit file, not markup
    )
    environment.filters["systemd_command"] = quote_command
    environment.filters["systemd_environment"] = quote_environment
    environment.tests["loopback"] = is_loopback
    try:
        text = template.read_text(encoding="utf-8")
        return environment.from_string(text).render(service=service)
    except OSError as error:
        raise RenderError(f"{template}: {os.strerror(error.errno or 0)}") from error
    except jinja2.TemplateError as error:
        raise RenderError(f"{template}, service {service.get('unit')}: {error}") from error


def with_unit_text(service: Mapping[str, Any], template: Path = TEMPLATE) -> dict[str, Any]:
    """The service plus its `unit_text`: what plans and the registry hold."""
    return {**service, "unit_text": render(service, template)}
