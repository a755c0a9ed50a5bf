"""Unit texts: quoting that systemd reads back unchanged, and the hardening that the template promises."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.specswap.core.plugins.plugin_utils import render, resolve
from inventory_data import collection_root, inventory

NASTY = [
    "a b",
    'say "x"',
    "100%",
    "$HOME",
    "${X}",
    "back\\slash",
    "semi;colon",
    "'single'",
    "é",
    "tab\there",
    "%h",
    "*",
    "#",
]
needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")


@pytest.fixture
def service(tmp_path: Path) -> dict[str, Any]:
    services = resolve.services(inventory(), collection_root(tmp_path))
    return resolve.pick(services, "ngram")


def read_back(text: str) -> list[str]:
    """A command line as systemd's own grammar reads it: continuation, quotes, escapes, specifiers, variables."""
    text = re.sub(r"\\\n\s*", " ", text)
    words = []
    for match in re.finditer(r'"((?:[^"\\]|\\.)*)"|(\S+)', text):
        word = match.group(1) if match.group(1) is not None else match.group(2)
        word = re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m.group(1), m.group(1)), word)
        words.append(word.replace("%%", "%").replace("$$", "$"))
    return words


@pytest.mark.parametrize("word", NASTY)
def test_words_survive_quoting(word: str) -> None:
    assert read_back(render.quote_command(["/bin/x", word, "--flag", word])) == ["/bin/x", word, "--flag", word]


def test_percent_and_dollar_are_doubled() -> None:
    assert render.quote_word("50%$X") == "50%%$$X"
    assert render.quote_word("50%$X", command=False) == "50%%$X"


def test_environment_is_one_line_per_variable_in_order() -> None:
    assert render.quote_environment({"B": "x y", "A": "1"}) == ["A=1", '"B=x y"']


@pytest.mark.parametrize("argv", [[], ["python3"], ["/bin/x", ""]])
def test_impossible_commands_are_refused(argv: list[str]) -> None:
    with pytest.raises(render.RenderError):
        render.quote_command(argv)


def test_control_characters_are_refused() -> None:
    with pytest.raises(render.RenderError, match="control characters"):
        render.quote_word("a\x07b")


def test_unit_names_its_plan_and_its_rivals(service: dict[str, Any]) -> None:
    text = render.render(service)
    assert text.startswith(f"# specswap plan_hash={service['plan_hash']}\n")
    assert "Conflicts=llamacpp-baseline-smoke.service\n" in text
    assert re.search(r"^After=.*llamacpp-baseline-smoke\.service$", text, re.M)
    # Ordered one way only: systemd refuses to stop two units that wait for each other.
    rival = render.render({**service, "unit": "llamacpp-a.service", "rivals": [service["unit"]]})
    assert f"Conflicts={service['unit']}\n" in rival and not re.search(r"^After=.*llamacpp", rival, re.M)
    command = re.search(r"^ExecStart=((?:.*\\\n)*.*)$", text, re.M)
    assert command is not None
    assert read_back(command.group(1)) == service["argv"]


def test_two_variants_differ_in_data_only(tmp_path: Path) -> None:
    services = resolve.services(inventory(variants__ngram={"extends": "baseline"}), collection_root(tmp_path))
    texts = []
    for one in services:
        other = "baseline" if one["variant"] == "ngram" else "ngram"
        text = render.render(one).replace(one["plan_hash"], "HASH")
        # Rivals are ordered by name, one after the other.
        text = re.sub(r"^After=.*\n", "", text, flags=re.M)
        texts.append(text.replace(one["variant"], "THIS").replace(other, "OTHER"))
    assert texts[0] == texts[1]


def test_cpu_service_gets_no_device_and_no_network_beyond_loopback(service: dict[str, Any]) -> None:
    text = render.render(service)
    assert "PrivateDevices=yes" in text and "DeviceAllow" not in text
    assert "IPAddressDeny=any" in text


def test_gpu_service_gets_its_gpus_only(service: dict[str, Any]) -> None:
    text = render.render({**service, "slot": {**service["slot"], "gpus": [3], "bind": "0.0.0.0"}})
    assert "DeviceAllow=/dev/nvidia3 rw" in text and "/dev/nvidia0" not in text
    assert "PrivateDevices=no" in text and "IPAddressDeny" not in text


def test_missing_data_names_template_and_key(service: dict[str, Any], tmp_path: Path) -> None:
    del service["user"]
    with pytest.raises(render.RenderError, match=r"service\.j2.*'user'"):
        render.render(service)
    with pytest.raises(render.RenderError, match="No such file"):
        render.render(service, tmp_path / "none.j2")


@needs_systemd
def test_systemd_finds_nothing_to_say_and_the_exposure_is_low(service: dict[str, Any], tmp_path: Path) -> None:
    # The interpreter must exist for the check; everything else stays as rendered.
    service["argv"] = ["/bin/sh", *service["argv"][1:], *NASTY[:9]]
    service["user"] = "daemon"
    service["rivals"] = []
    unit = tmp_path / service["unit"]
    unit.write_text(render.render(service))
    verify = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False)
    told = [line for line in verify.stderr.splitlines() if "specswap" in line or unit.name in line]
    assert (verify.returncode, told) == (0, [])
    exposure = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=25", unit],
        capture_output=True,
        text=True,
        check=False,
    )
    assert exposure.returncode == 0, exposure.stdout[-200:]
