"""The SGLang adapter against the double of SGLang's outside, as a real process."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from host_doubles import service_dict
from specswap_host import golden as goldens
from specswap_host.engines import GenerateError, get_engine
from specswap_host.engines.sglang import same_setting
from specswap_host.floor import judge_acceptance
from specswap_host.plan import Service

DOUBLE = Path(__file__).resolve().parents[2] / "doubles" / "sglang_double.py"
FAST = ("load_s", "0.02", "kv_s", "0", "graph_s", "0.02", "warmup_poll_s", "0.02", "warmup_s", "0.02")
SETTINGS = {
    "speculative_algorithm": "DFLASH",
    "attention_backend": "triton",
    "grammar_backend": "none",
    "speculative_num_draft_tokens": 16,
}
Start = Callable[..., Service]
ENGINE = get_engine("sglang")


def sglang_service(root: Path, *flags: str, **changes: Any) -> dict[str, Any]:
    """A service of engine sglang with a draft, whose command line runs the double."""
    data = {**service_dict(root, "dflash"), "engine": "sglang", "settings": SETTINGS, "claims": {"drafts": True}}
    data["models"] = {
        "target": {"name": "t", "path": "/models/t", "sha256": "ab", "size": 3},
        "draft": {"name": "d", "path": "/models/d", "sha256": "cd", "size": 3},
    }
    data.update(changes)
    with socket.create_server(("127.0.0.1", 0)) as server:
        data["slot"] = {**data["slot"], "port": server.getsockname()[1]}
    switches = [f"--double-{FAST[i].replace('_', '-')}={FAST[i + 1]}" for i in range(0, len(FAST), 2)]
    data["argv"] = [
        *(sys.executable, str(DOUBLE), "--model-path", "/models/t", "--speculative-draft-model-path", "/models/d"),
        *("--speculative-algorithm", "DFLASH", "--attention-backend", "triton", "--grammar-backend", "none"),
        *("--host", "127.0.0.1", "--port", str(data["slot"]["port"]), "--served-model-name", data["served_model"]),
        *("--weight-version", data["identity"], "--double-health-poll-s=0.05", *switches, *flags),
    ]
    return data


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    processes: list[subprocess.Popen[bytes]] = []

    def start(*flags: str, ready: bool = True, **changes: Any) -> Service:
        service = Service.from_dict(sglang_service(tmp_path, *flags, **changes))
        processes.append(subprocess.Popen(service.argv, stderr=subprocess.DEVNULL, start_new_session=True))
        deadline = time.monotonic() + 20
        while ready and time.monotonic() < deadline and not ENGINE.health(service, 5).ok:
            time.sleep(0.05)
        return service

    yield start
    for process in processes:
        process.kill()  # its children die with it (PR_SET_PDEATHSIG)
        process.wait()


def test_a_good_server_passes_all_questions(start: Start) -> None:
    service = start()
    assert ENGINE.static_checks(service) == []
    identity = ENGINE.identity(service, 2)
    assert identity.ok and identity.evidence["identity"] == service.identity, identity.message
    assert identity.evidence["settings"]["speculative_algorithm"] == "DFLASH"
    assert ENGINE.complete(service, 5).ok
    golden = goldens.Golden(None, absent="none")
    probe, canary = goldens.run_canary(ENGINE, service, golden, lambda: 10.0)
    assert probe.ok and canary is not None, probe.message
    accepts = judge_acceptance(service, canary.repetitive)
    assert accepts.ok and accepts.evidence["accept_length"] > 2
    again, _ = goldens.run_canary(ENGINE, service, goldens.Golden(Path("g"), canary.texts), lambda: 10.0)
    assert again.evidence["golden"] == "equal"


def test_its_own_live_command_line_is_the_planned_one(start: Start) -> None:
    service = start()
    assert ENGINE.argv_matches(service, list(service.argv))
    assert not ENGINE.argv_matches(service, [*service.argv, "--disable-cuda-graph"])


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--weight-version", "default"), "another variant answers"),
        (("--double-wrong-server-info", '{"attention_backend": "flashinfer"}'), "attention_backend='flashinfer'"),
        (("--double-wrong-server-info", '{"speculative_algorithm": null}'), "speculative_algorithm=None"),
        (("--double-wrong-server-info", '{"model_path": "/models/other"}'), "model_path='/models/other'"),
        (("--double-wrong-server-info", '{"speculative_num_draft_tokens": 4}'), "speculative_num_draft_tokens=4"),
        (("--grammar-backend", "xgrammar"), "grammar_backend='xgrammar'"),
    ],
)
def test_other_identity_or_settings_are_final(start: Start, flags: tuple[str, ...], words: str) -> None:
    probe = ENGINE.identity(start(*flags), 2)
    assert not probe.ok and probe.final and words in probe.message


def test_a_setting_that_this_build_does_not_show_is_final(start: Start) -> None:
    probe = ENGINE.identity(start(settings={**SETTINGS, "speculative_ddtree_budget": 32}), 2)
    assert not probe.ok and probe.final and "does not show speculative_ddtree_budget" in probe.message


def test_completion_of_another_server_is_told_by_its_weight_version(start: Start) -> None:
    probe = ENGINE.complete(start("--weight-version", "old"), 5)
    assert not probe.ok and probe.final and "weight_version is 'old'" in probe.message
    with pytest.raises(GenerateError, match="weight_version is 'old'"):
        ENGINE.generate(start("--weight-version", "old"), goldens.REPETITIVE, 5)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--double-empty-text", "text is empty"),
        ("--double-missing-usage", "reply"),
        ("--double-missing-finish-reason", "reply"),
        ("--double-nonsense-json", "not JSON"),
        ("--double-answer-500", "HTTP 500"),
        ("--double-repeated-text", "degenerate output"),
    ],
)
def test_lying_answers_fail_the_canary(start: Start, flag: str, words: str) -> None:
    probe, canary = goldens.run_canary(ENGINE, start(flag), goldens.Golden(None, absent="none"), lambda: 3.0)
    assert not probe.ok and words in probe.message, probe.message
    assert canary is None or "degenerate" in probe.message


def test_wrong_tokens_differ_from_the_golden(start: Start) -> None:
    _, canary = goldens.run_canary(ENGINE, start(), goldens.Golden(None, absent="none"), lambda: 5.0)
    assert canary is not None
    golden = goldens.Golden(Path("g"), canary.texts)
    probe, _ = goldens.run_canary(ENGINE, start("--double-wrong-tokens"), golden, lambda: 5.0)
    assert not probe.ok and probe.final and "the golden says" in probe.message


@pytest.mark.parametrize(
    ("flag", "length", "words"),
    [("--double-accept-length=1.0", 1.0, "is 1.00"), ("--speculative-algorithm=NONE", None, "tells no")],
)
def test_drafts_for_nothing_and_no_drafts(start: Start, flag: str, length: float | None, words: str) -> None:
    service = start(flag)
    answer = ENGINE.generate(service, goldens.REPETITIVE, 5)
    assert answer.accept_length == length
    probe = judge_acceptance(service, answer)
    assert not probe.ok and probe.final and words in probe.message


def test_structured_output(start: Start) -> None:
    settings = {**SETTINGS, "grammar_backend": "xgrammar"}
    claims = {"claims": {"drafts": True, "grammar": True}, "settings": settings}
    absent = goldens.Golden(None, absent="none")
    good, _ = goldens.run_canary(ENGINE, start("--grammar-backend=xgrammar", **claims), absent, lambda: 5.0)
    assert good.ok, good.message
    service = start("--grammar-backend=xgrammar", "--double-grammar-ignored", **claims)
    ignored, _ = goldens.run_canary(ENGINE, service, absent, lambda: 5.0)
    assert not ignored.ok and "structured output is claimed" in ignored.message
    refused, _ = goldens.run_canary(ENGINE, start(**claims), absent, lambda: 5.0)
    assert not refused.ok and refused.final and "HTTP 400" in refused.message


def test_warming_up_is_not_healthy_and_a_hang_is_no_answer(start: Start) -> None:
    service = start("--double-endless-warmup", ready=False)
    deadline = time.monotonic() + 10
    probe = ENGINE.health(service, 2)
    while "503" not in probe.message and time.monotonic() < deadline:
        time.sleep(0.05)
        probe = ENGINE.health(service, 2)
    assert not probe.ok and not probe.final and "503" in probe.message
    hung = ENGINE.complete(start("--double-wedge-after-requests=0"), 0.5)
    assert not hung.ok and not hung.final and "no complete reply" in hung.message


def test_phases_as_the_double_logs_them(tmp_path: Path) -> None:
    service = Service.from_dict(sglang_service(tmp_path))
    process = subprocess.Popen(service.argv, stderr=subprocess.PIPE, text=True, start_new_session=True)
    assert process.stderr is not None
    seen: list[str] = []
    try:
        for line in process.stderr:
            phase = ENGINE.phase(line)
            if phase and phase not in seen:
                seen.append(phase)
            if phase == "ready":
                break
    finally:
        process.kill()
        process.wait()
    assert seen == [
        *("imports done", "distributed init", "loading weights", "weights loaded", "KV cache allocated"),
        *("capturing CUDA graphs", "CUDA graphs captured", "HTTP up", "ready"),
    ]


def test_static_checks_name_flag_and_way_out(tmp_path: Path) -> None:
    data = sglang_service(tmp_path, "--port", "1", served_model="a:b")
    data["argv"] = [word if word != data["identity"] else "default" for word in data["argv"]]
    findings = ENGINE.static_checks(Service.from_dict(data))
    assert [finding.id for finding in findings] == ["argv_mismatch", "argv_mismatch", "served_model"]
    assert "--port" in findings[0].message and "--weight-version" in findings[1].message


@pytest.mark.parametrize(
    ("live", "planned", "same"),
    [
        ("DFLASH", "dflash", True),
        (None, "none", True),
        ("", None, True),
        (None, "DFLASH", False),
        (16, 16, True),
        (16, "16", False),
        (False, None, False),
        (0, None, False),
    ],
)
def test_same_setting(live: Any, planned: Any, same: bool) -> None:
    assert same_setting(live, planned) is same


@pytest.mark.parametrize("more", [("--hos", "0.0.0.0"), ("--model=/other",), ("--config", "/etc/more.yaml")])
def test_static_checks_see_shortened_flags_and_files_of_flags(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert ENGINE.static_checks(Service.from_dict(sglang_service(tmp_path))) == []
    (finding,) = ENGINE.static_checks(Service.from_dict(sglang_service(tmp_path, *more)))
    assert finding.id == "argv_mismatch" and more[0].split("=")[0] in finding.message
