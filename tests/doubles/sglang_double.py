#!/usr/bin/env python3
"""A double of the SGLang server for fault injection: its documented outside, no model, no GPU, standard library only.

    sglang_double.py --model-path /models/t --port 30001 --served-model-name t --double-load-s 0.2
    SGLANG_DOUBLE='{"wedge_after_requests": 3}' sglang_double.py --model-path /models/t --port 30001
    sglang_double.py --double-help-faults[=json]    every switch with type, default and meaning

Installed as `sglang/launch_server.py` beside an empty `sglang/__init__.py` it answers to `python -m
sglang.launch_server` too. A switch in SGLANG_DOUBLE is overridden by the same switch on the command line.

Imitated. [S] = read in SGLang 0.5.17, [H200] = measured with it on one NVIDIA H200, #n = issue of sgl-project/sglang
- argument spelling, argparse exit 2 on unknown flags, ValueError on an unknown algorithm or a DFLASH without draft [S]
- resolved settings: DFLASH block size from the draft's config.json else 16, num_steps 1, eagle_topk 1, draft back-end
  [S, H200]
- start: log lines and phases in the scheduler child (weights, memory pool, graphs), HTTP only afterwards, warm-up
  over the own URL before the ready line [S]; ready line *before* the port is bound with --skip-server-warmup [H200]
- /v1/models: one static name, 200 while warming up and after a hang (#6624); any model name is accepted in requests
  and echoed in the answer [S]
- /health, /health_generate: 503 while starting or exiting; else answers after a poll tick; 503 after a timeout when
  nothing comes from the scheduler [S]; 503 of a busy healthy server (#22511)
- /server_info, /get_server_info: settings (secrets included), version, startup_time, internal_states[]; blocks when
  the scheduler hangs [S]
- avg_spec_accept_length, the metrics' gauges and "Decode batch" lines refresh only every --decode-log-interval steps
  and are absent or zero before the first [S, H200] (#10672)
- /generate, /v1/completions, /v1/chat/completions: keys, SSE order, one chunk per verify step (several tokens), usage
  only on include_usage, greedy text that does not depend on the speculative algorithm [S]
- /metrics only with --enable-metrics, --api-key, structured output refused by --grammar-backend none [S]
- stop: SIGTERM is polled, in-flight requests are drained, then the process SIGKILLs its own tree, itself included; a
  signal to the whole process group ends in the crash wording instead [S, H200]
- children sglang::scheduler*, sglang::detokenizer with PR_SET_PDEATHSIG; a dead child ends the server [S]; orphans
  that no parent-child walk finds (#23627)

Not imitated: tokenisation (a word or a sign is a token), real speed or memory, TP/DP communication, LoRA, logprobs,
tools, n > 1, batches, sessions, memory release and resume, other engines' routes, the full list of flags (only those
in ARGUMENTS), the command line of children (their comm is set, their cmdline stays the parent's), CUDA work of any
kind.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import hashlib
import hmac
import json
import os
import re
import signal
import socket
import sys
import threading
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NoReturn

T0 = time.monotonic()
BUILT_IN_ALGORITHMS = ("DFLASH", "DSPARK", "EAGLE", "EAGLE3", "FROZEN_KV_MTP", "NEXTN", "NGRAM", "NONE", "STANDALONE")
EOS_ID = 2


# ------------------------------------------------------------------------------------------------------------ switches


@dataclass(frozen=True)
class Switch:
    """One `--double-*` switch: `kind` is the JSON type (bool, int, float, str, json), `group` says what it is for."""

    name: str
    kind: str
    default: Any
    group: str
    text: str


SWITCHES = (
    # timing of a healthy server
    Switch("import_s", "float", 0.0, "timing", "seconds of imports before the first log line"),
    Switch("load_s", "float", 0.2, "timing", "seconds of weight loading"),
    Switch("kv_s", "float", 0.02, "timing", "seconds of memory pool allocation"),
    Switch("graph_s", "float", 0.1, "timing", "seconds of CUDA graph capture (none with --disable-cuda-graph)"),
    Switch("warmup_poll_s", "float", 0.1, "timing", "pause before each warm-up probe of /model_info (SGLang: 1)"),
    Switch("warmup_s", "float", 0.1, "timing", "seconds that the warm-up request takes"),
    Switch("health_poll_s", "float", 1.0, "timing", "tick of the generating /health (SGLang: 1, so /health takes 1 s)"),
    Switch("health_timeout_s", "float", 20.0, "timing", "/health turns 503 after this silence of the scheduler"),
    Switch("term_poll_s", "float", 1.0, "timing", "tick at which SIGTERM and draining are looked at (SGLang: 5)"),
    Switch("crash_pause_s", "float", 1.0, "timing", "pause between a dead child and the end of the server (SGLang: 5)"),
    Switch("prefill_s", "float", 0.005, "timing", "seconds until the first token"),
    Switch("step_s", "float", 0.002, "timing", "seconds per decode step"),
    # what the imitated build can do
    Switch("version", "str", "0.5.17", "build", "version in /server_info"),
    Switch("algorithms", "json", [], "build", "further algorithm names, as a plug-in would register them"),
    Switch("extra_flags", "json", [], "build", 'further flags of a fork, e.g. ["--speculative-ddtree-budget"]'),
    Switch("accept_length", "float", 3.2, "build", "mean tokens per verify step; 1.0 = drafts for nothing"),
    Switch("check_paths", "bool", False, "build", "die like a loader when --model-path or the draft's path is missing"),
    # start-up faults
    Switch("crash_with", "str", "", "start", "die during start with a known traceback; names: see CRASHES"),
    Switch("crash_exit", "int", -1, "start", "exit code of crashes; -1 = SGLang's (import 1, later SIGKILL)"),
    Switch("crash_after_s", "float", -1.0, "start", "crash this many seconds after process start"),
    Switch("crash_after_ready_s", "float", -1.0, "start", "crash this many seconds after the ready line"),
    Switch("endless_load", "bool", False, "start", "weights never finish loading; the port never opens"),
    Switch("endless_load_silent", "bool", False, "start", "with endless_load: no progress lines either"),
    Switch("endless_warmup", "bool", False, "start", "HTTP is up, /v1/models 200, /health 503 for ever"),
    Switch("bind_late_s", "float", 0.0, "start", "bind the port this many seconds after the rest is ready"),
    Switch("bind_port", "int", 0, "start", "listen on this port instead of --port"),
    Switch("reuse_port", "bool", False, "start", "bind with SO_REUSEPORT, so that two servers share the port"),
    # health and generation
    Switch("wedge_after_requests", "int", -1, "generation", "generation hangs after so many requests (0 = at once)"),
    Switch("wedge_health", "str", "200", "generation", "/health while wedged: 200 lies; 503: /server_info hangs too"),
    Switch("slow_health_s", "float", 0.0, "generation", "extra seconds before /health answers"),
    Switch("health_503_while_busy", "bool", False, "generation", "/health is 503 while any request runs"),
    Switch("from_request", "int", 1, "generation", "request at which the faults below begin (warm-up not counted)"),
    Switch("answer_500", "bool", False, "generation", "generation answers 500"),
    Switch("nonsense_json", "bool", False, "generation", "generation answers 200 with a body that is no JSON"),
    Switch("empty_text", "bool", False, "generation", "empty text, 0 completion tokens"),
    Switch("repeated_text", "bool", False, "generation", "one token over and over"),
    Switch("wrong_tokens", "bool", False, "generation", "another greedy text than a healthy server of the same model"),
    Switch("missing_usage", "bool", False, "generation", "no usage, no token counts"),
    Switch("missing_finish_reason", "bool", False, "generation", "no finish reason"),
    Switch("stream_error_after", "int", -1, "generation", "error object inside the 200 stream after this many chunks"),
    Switch("truncate_stream_after", "int", -1, "generation", "connection cut after this many chunks"),
    Switch("no_done", "bool", False, "generation", "stream ends without [DONE]"),
    Switch("slow_factor", "float", 1.0, "generation", "every decode step takes this many times as long"),
    Switch("grammar_ignored", "bool", False, "generation", "structured output is silently not enforced"),
    # identity
    Switch("wrong_served_model", "str", "", "identity", "/v1/models shows this name"),
    Switch("wrong_server_info", "json", {}, "identity", "keys of /server_info replaced by these"),
    # stop and processes
    Switch("stop_style", "str", "sigkill", "stop", "end after SIGTERM: sigkill (as 0.5.17) or exit0"),
    Switch("ignore_sigterm", "bool", False, "stop", "SIGTERM is ignored"),
    Switch("slow_stop_s", "float", 0.0, "stop", "extra seconds between draining and the end"),
    Switch("escaped_child", "bool", False, "stop", "a scheduler re-parented to PID 1, own session, deaf to SIGTERM"),
    Switch("escaped_child_holds_port", "bool", False, "stop", "the same, and it keeps the listening socket open"),
    Switch("escape_s", "float", 300.0, "stop", "seconds after which an escaped child ends by itself"),
    # resources and logs
    Switch("eat_memory_mb", "int", 0, "resources", "allocate and touch up to so many MiB (until the OOM kill)"),
    Switch("eat_memory_phase", "str", "load", "resources", "when: load (scheduler child) or ready (scheduler child)"),
    Switch("leak_shm_bytes", "int", 0, "resources", "leave a segment /dev/shm/psm_sglang_double_<pid> behind"),
    Switch("log_flood_per_s", "int", 0, "resources", "log lines per second while serving"),
)  # fmt: skip
SWITCH_BY_NAME = {switch.name: switch for switch in SWITCHES}


class UsageError(Exception):
    """A switch or a flag that cannot be: reported as argparse does, exit 2."""


def convert(switch: Switch, value: object) -> Any:
    """Give `value` (JSON value or command-line text) the switch's type; UsageError names the switch."""
    try:
        if switch.kind == "bool":
            if isinstance(value, bool):
                return value
            return {"true": True, "1": True, "false": False, "0": False}[str(value).lower()]
        if switch.kind == "json":
            result = json.loads(value) if isinstance(value, str) else value
            if type(result) is not type(switch.default):
                raise ValueError(result)
            return result
        if switch.kind == "int":
            return int(str(value))
        if switch.kind == "float":
            return float(str(value))
        return str(value)
    except (KeyError, ValueError) as error:
        raise UsageError(f"switch {switch.name}: {value!r} is not a {switch.kind}") from error


class Switches:
    """Values of all switches as attributes, from defaults, then SGLANG_DOUBLE, then the command line."""

    def __init__(self, environment: str, command_line: dict[str, object]) -> None:
        self.values: dict[str, Any] = {switch.name: switch.default for switch in SWITCHES}
        try:
            given = json.loads(environment or "{}")
        except ValueError as error:
            raise UsageError(f"SGLANG_DOUBLE is no JSON: {error}") from error
        if not isinstance(given, dict):
            raise UsageError("SGLANG_DOUBLE must be a JSON object of switches")
        for name, value in [*given.items(), *command_line.items()]:
            if name not in SWITCH_BY_NAME:
                raise UsageError(f"unknown switch {name!r} in SGLANG_DOUBLE; --double-help-faults lists them")
            self.values[name] = convert(SWITCH_BY_NAME[name], value)
        for name, allowed in CHOICES.items():
            if self.values[name] not in allowed:
                raise UsageError(
                    f"switch {name}: {self.values[name]!r} is none of {', '.join(a or '(empty)' for a in allowed)}"
                )

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["values"][name]
        except KeyError:
            raise AttributeError(name) from None


# ------------------------------------------------------------------------------------------------------------- crashes


@dataclass(frozen=True)
class Crash:
    """A known death at start: `where` is import (exit 1), scheduler (parent SIGKILLs itself) or bind (exit 1)."""

    where: str
    frames: tuple[str, ...]
    error: str


_SITE = "/opt/specswap/envs/double/lib/python3.12/site-packages"
_LAUNCH = (
    '  File "<frozen runpy>", line 198, in _run_module_as_main',
    '  File "<frozen runpy>", line 88, in _run_code',
    f'  File "{_SITE}/sglang/launch_server.py", line 62, in <module>',
    f'  File "{_SITE}/sglang/launch_server.py", line 45, in run_server',
)
_SCHEDULER = (
    f'  File "{_SITE}/sglang/srt/managers/scheduler.py", line 4923, in run_scheduler_process',
    f'  File "{_SITE}/sglang/srt/managers/scheduler.py", line 480, in __init__',
)
_KERNEL = (*_LAUNCH, f'  File "{_SITE}/sgl_kernel/__init__.py", line 12, in <module>')
_COMMON_OPS = (
    "ImportError: \n[sgl_kernel] CRITICAL: Could not load any common_ops library!\n\nAttempted locations:\n"
    f"1. Architecture-specific pattern: {_SITE}/sgl_kernel/sm100/common_ops.* - found files: ['common_ops.abi3.so']\n\n"
    "Error details:\n- ImportError: "
)
_JIT = (*_SCHEDULER, f'  File "{_SITE}/flashinfer/jit/core.py", line 131, in gen_jit_spec')

CRASHES = {
    "cuda_oom": Crash(
        "scheduler",
        (*_SCHEDULER, f'  File "{_SITE}/sglang/srt/mem_cache/memory_pool.py", line 712, in _create_buffers'),
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 27.50 GiB. GPU 0 has a total capacity "
        "of 94.97 GiB of which 3.12 GiB is free. Including non-PyTorch memory, this process "
        "has 91.84 GiB memory in use.",
    ),
    "no_kv_memory": Crash(
        "scheduler",
        (*_SCHEDULER, f'  File "{_SITE}/sglang/srt/model_executor/model_runner.py", line 1330, in init_memory_pool'),
        "RuntimeError: Not enough memory. Please try to increase --mem-fraction-static.",
    ),
    "abi_undefined_symbol": Crash(
        "import",
        _KERNEL,
        f"{_COMMON_OPS}{_SITE}/sgl_kernel/sm100/common_ops.abi3.so: undefined symbol: _ZN3c1013MessageLoggerC1EPKciib",
    ),
    "abi_cudart13": Crash(
        "import", _KERNEL, f"{_COMMON_OPS}libcudart.so.13: cannot open shared object file: No such file or directory"
    ),
    "abi_cudart12": Crash(
        "import", _KERNEL, f"{_COMMON_OPS}libcudart.so.12: cannot open shared object file: No such file or directory"
    ),
    "libnuma": Crash(
        "import", _KERNEL, f"{_COMMON_OPS}libnuma.so.1: cannot open shared object file: No such file or directory"
    ),
    "xgrammar_import": Crash(
        "import",
        (*_LAUNCH, f'  File "{_SITE}/sglang/srt/function_call/base_format_detector.py", line 11, in <module>'),
        f"ImportError: cannot import name 'StructuralTag' from 'xgrammar' ({_SITE}/xgrammar/__init__.py)",
    ),
    "xgrammar_tvm_ffi": Crash(
        "scheduler",
        (*_SCHEDULER, f'  File "{_SITE}/xgrammar/matcher.py", line 301, in accept_token'),
        "TypeError: Mismatched type on argument #1 when calling: `xgrammar.GrammarMatcher.accept_token`. "
        "Expected `int` but got `bool`",
    ),
    "flashinfer_version": Crash(
        "import",
        _LAUNCH,
        "Exception: flashinfer_python is installed with version 0.6.3, "
        "which is less than the minimum required version 0.6.15.post1.",
    ),
    "flashinfer_sm120": Crash("scheduler", _JIT, "RuntimeError: FlashInfer requires GPUs with sm75 or higher"),
    "flashinfer_no_arch": Crash(
        "scheduler", _JIT, "RuntimeError: No supported CUDA architectures found for major versions [12]."
    ),
    "trtllm_arch": Crash(
        "scheduler",
        _JIT,
        "RuntimeError: Error in function 'TllmGenFmhaRunner' at fmhaRunner.cuh:37: Unsupported architecture",
    ),
    "ninja_missing": Crash("scheduler", _JIT, "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'"),
    "nvcc_missing": Crash(
        "scheduler", _JIT, "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"
    ),
    "no_kernel_image": Crash(
        "scheduler",
        (*_SCHEDULER, f'  File "{_SITE}/sgl_kernel/elementwise.py", line 91, in rmsnorm'),
        "RuntimeError: RMSNorm failed with error code no kernel image is available for execution on the device",
    ),
    "no_gpu": Crash(
        "import",
        (*_LAUNCH, f'  File "{_SITE}/torch/cuda/__init__.py", line 417, in _lazy_init'),
        "RuntimeError: No CUDA GPUs are available",
    ),
    "address_in_use": Crash("bind", (), ""),
}
# seen in every healthy start on the H200: a log classifier must not take them for failures
HARMLESS_LINES = (
    "Fail to set RLIMIT_NOFILE: current limit exceeds maximum limit",
    "Ignore import error when loading sglang.srt.models.inkling: No module named 'helion'",
    "Using fallback token IDs for yes/no",
)
CHOICES: dict[str, tuple[str, ...]] = {
    "crash_with": ("", *CRASHES),
    "wedge_health": ("200", "503"),
    "stop_style": ("sigkill", "exit0"),
    "eat_memory_phase": ("load", "ready"),
}


# ----------------------------------------------------------------------------------------------------------- arguments

# (spellings, kind, default); kind: str, int, float, flag, list. Names and plain defaults as in 0.5.17.
ARGUMENTS: tuple[tuple[str, str, Any], ...] = (
    ("--model-path --model", "str", None), ("--tokenizer-path", "str", None), ("--tokenizer-mode", "str", "auto"),
    ("--served-model-name", "str", None), ("--host", "str", "127.0.0.1"), ("--port", "int", 30000),
    ("--api-key", "str", None), ("--admin-api-key", "str", None), ("--revision", "str", None),
    ("--weight-version", "str", "default"),
    ("--trust-remote-code", "flag", False), ("--context-length", "int", None), ("--dtype", "str", "auto"),
    ("--quantization", "str", None), ("--kv-cache-dtype", "str", "auto"), ("--load-format", "str", "auto"),
    ("--device", "str", None), ("--mem-fraction-static", "float", None), ("--max-running-requests", "int", None),
    ("--max-queued-requests", "int", None), ("--max-total-tokens", "int", None),
    ("--chunked-prefill-size", "int", None),
    ("--max-prefill-tokens", "int", 16384), ("--schedule-policy", "str", "fcfs"), ("--page-size", "int", None),
    ("--tensor-parallel-size --tp-size --tp", "int", 1), ("--data-parallel-size --dp-size --dp", "int", 1),
    ("--pipeline-parallel-size --pp-size --pp", "int", 1), ("--base-gpu-id", "int", 0), ("--random-seed", "int", None),
    ("--stream-interval", "int", 1), ("--log-level", "str", "info"), ("--log-level-http", "str", None),
    ("--log-requests", "flag", False),
    ("--enable-metrics", "flag", False), ("--decode-log-interval", "int", 40), ("--watchdog-timeout", "float", 300),
    ("--soft-watchdog-timeout", "float", None), ("--dist-timeout", "int", None), ("--nccl-port", "int", None),
    ("--attention-backend", "str", None), ("--prefill-attention-backend", "str", None),
    ("--decode-attention-backend", "str", None),
    ("--sampling-backend", "str", None), ("--grammar-backend", "str", None), ("--mm-feature-transport", "str", "auto"),
    ("--moe-runner-backend", "str", "auto"), ("--fp8-gemm-backend", "str", "auto"),
    ("--speculative-algorithm", "str", None), ("--speculative-draft-model-path --speculative-draft-model", "str", None),
    ("--speculative-draft-model-revision", "str", None), ("--speculative-draft-load-format", "str", None),
    ("--speculative-draft-model-quantization", "str", None), ("--speculative-num-steps", "int", None),
    ("--speculative-eagle-topk", "int", None), ("--speculative-num-draft-tokens", "int", None),
    ("--speculative-dflash-block-size", "int", None), ("--speculative-draft-window-size", "int", None),
    ("--speculative-draft-attention-backend", "str", None), ("--speculative-attention-mode", "str", "prefill"),
    ("--speculative-accept-threshold-single", "float", 1.0), ("--speculative-accept-threshold-acc", "float", 1.0),
    ("--speculative-use-rejection-sampling", "flag", False), ("--speculative-token-map", "str", None),
    ("--disable-cuda-graph", "flag", False), ("--disable-prefill-cuda-graph", "flag", False),
    ("--disable-decode-cuda-graph", "flag", False), ("--cuda-graph-max-bs-decode --cuda-graph-max-bs", "int", None),
    ("--cuda-graph-bs-decode --cuda-graph-bs", "list", None), ("--disable-radix-cache", "flag", False),
    ("--disable-overlap-schedule", "flag", False), ("--enable-mixed-chunk", "flag", False),
    ("--enable-deterministic-inference", "flag", False), ("--enable-memory-saver", "flag", False),
    ("--enable-weights-cpu-backup", "flag", False), ("--skip-server-warmup", "flag", False),
    ("--disable-custom-all-reduce", "flag", False), ("--enable-torch-compile", "flag", False),
    ("--sleep-on-idle", "flag", False),
    ("--enable-cache-report", "flag", False), ("--reasoning-parser", "str", None), ("--tool-call-parser", "str", None),
    ("--chat-template", "str", None), ("--mamba-ssm-dtype", "str", None), ("--mamba-backend", "str", "triton"),
    ("--enable-lora", "flag", False),
)  # fmt: skip
# dest of a flag whose field in /server_info has another name than its first spelling
FIELD = {
    "tensor_parallel_size": "tp_size",
    "data_parallel_size": "dp_size",
    "pipeline_parallel_size": "pp_size",
    "fp8_gemm_backend": "fp8_gemm_runner_backend",
}


def build_parser(extra_flags: list[str]) -> argparse.ArgumentParser:
    """The parser of SGLang's flags, the fork's `extra_flags` (each takes one text) and the double's switches."""
    parser = argparse.ArgumentParser(prog="launch_server.py")
    kinds: dict[str, Any] = {"str": str, "int": int, "float": float}
    for spellings, kind, default in ARGUMENTS:
        names = spellings.split()
        name = names[0].lstrip("-").replace("-", "_")
        dest = FIELD.get(name, name)
        if kind == "flag":
            parser.add_argument(*names, dest=dest, action="store_true")
        elif kind == "list":
            parser.add_argument(*names, dest=dest, type=int, nargs="+", default=default)
        else:
            parser.add_argument(
                *names, dest=dest, type=kinds[kind], default=default, required=names[0] == "--model-path"
            )
    for flag in extra_flags:
        parser.add_argument(flag, default=None)
    group = parser.add_argument_group("double")
    group.add_argument(
        "--double-help-faults", nargs="?", const="text", choices=("text", "json"), help="list all switches"
    )
    for switch in SWITCHES:
        group.add_argument(
            "--double-" + switch.name.replace("_", "-"),
            dest="double_" + switch.name,
            nargs="?" if switch.kind == "bool" else None,
            const="true" if switch.kind == "bool" else None,
            default=None,
            metavar=switch.kind.upper(),
            help=switch.text.replace("%", "%%"),
        )
    return parser


def help_faults(style: str) -> str:
    """All switches, as aligned text or as a JSON array of {name, kind, default, group, text, choices}."""
    rows = [
        {
            "name": s.name,
            "kind": s.kind,
            "default": s.default,
            "group": s.group,
            "text": s.text,
            "choices": list(CHOICES.get(s.name, ())),
        }
        for s in SWITCHES
    ]
    if style == "json":
        return json.dumps(rows, indent=1)
    lines = [
        f"{row['group']:10} --double-{str(row['name']).replace('_', '-'):28} {row['kind']!s:5} "
        f"[{json.dumps(row['default'])}] {row['text']}"
        + (f" ({' | '.join(c for c in row['choices'] if c)})" if row["choices"] else "")
        for row in rows
    ]
    return "\n".join(lines)


def resolve(args: argparse.Namespace, switches: Switches) -> dict[str, Any]:
    """SGLang's settings after its own defaulting; ValueError for what SGLang refuses with a traceback."""
    settings = {key: value for key, value in vars(args).items() if not key.startswith("double_")}
    settings["tokenizer_path"] = settings["tokenizer_path"] or settings["model_path"]
    settings["served_model_name"] = settings["served_model_name"] or settings["model_path"]
    if ":" in settings["served_model_name"]:
        raise ValueError(f"served_model_name cannot contain a colon (':') character: {settings['served_model_name']!r}")
    settings["device"] = settings["device"] or "cuda"
    settings["random_seed"] = settings["random_seed"] or int.from_bytes(os.urandom(3), "big")
    settings["attention_backend"] = settings["attention_backend"] or "flashinfer"
    settings["sampling_backend"] = settings["sampling_backend"] or "flashinfer"
    settings["grammar_backend"] = settings["grammar_backend"] or "xgrammar"
    settings["page_size"] = settings["page_size"] or 1
    settings["mem_fraction_static"] = settings["mem_fraction_static"] or 0.88
    algorithm = (settings["speculative_algorithm"] or "").upper() or None
    settings["speculative_algorithm"] = algorithm
    if algorithm in (None, "NONE"):
        settings["speculative_algorithm"] = None
        return settings
    if algorithm not in BUILT_IN_ALGORITHMS and algorithm not in switches.algorithms:
        raise ValueError(f"Unknown speculative algorithm name: {algorithm}")
    if algorithm in ("NGRAM", "EAGLE", "EAGLE3", "NEXTN", "STANDALONE", "FROZEN_KV_MTP"):
        settings["speculative_num_draft_tokens"] = settings["speculative_num_draft_tokens"] or 4
        return settings
    draft = settings["speculative_draft_model_path"]
    if draft is None:
        raise ValueError("DFLASH speculative decoding requires setting --speculative-draft-model-path.")
    block = settings["speculative_dflash_block_size"]
    asked = settings["speculative_num_draft_tokens"]
    if algorithm == "DFLASH" and block and asked and block != asked:
        raise ValueError(
            "Both --speculative-num-draft-tokens and --speculative-dflash-block-size are set "
            "but they differ. For DFLASH they must match."
        )
    settings["speculative_num_draft_tokens"] = asked or block or draft_block_size(Path(draft)) or 16
    settings["speculative_num_steps"] = settings["speculative_eagle_topk"] = 1
    settings["speculative_draft_attention_backend"] = (
        settings["speculative_draft_attention_backend"] or settings["attention_backend"]
    )
    settings["max_running_requests"] = settings["max_running_requests"] or 48
    return settings


def draft_block_size(draft: Path) -> int | None:
    """Block size from the draft's config.json (dflash_config wins), None when there is no readable one."""
    try:
        config = json.loads((draft / "config.json").read_text())
        return int(config.get("dflash_config", {}).get("block_size") or config["block_size"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


# ----------------------------------------------------------------------------------------------------------------- log


def log(message: str, *, prefix: str = "") -> None:
    """One log record on stderr in SGLang's format, written at once so that processes do not mix within a line."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    with contextlib.suppress(OSError):
        os.write(2, f"[{stamp}{prefix}] {message}\n".encode())


def traceback_text(crash: Crash) -> str:
    """The traceback of a known crash, as Python prints it."""
    return "\n".join(["Traceback (most recent call last):", *crash.frames, crash.error])


# --------------------------------------------------------------------------------------------------------------- tokens

_SYLLABLES = [c + v for c in "bdfghklmnprstvwz" for v in "aeiou"]


def token_text(token: int) -> str:
    """Text of a token id: a full stop for every 17th id, else a space and a word; the end token is empty."""
    if token == EOS_ID:
        return ""
    if token % 17 == 0:
        return "."
    return " " + _SYLLABLES[token % 80] + _SYLLABLES[token // 80 % 80]


def count_tokens(text: str) -> int:
    """Prompt tokens of a text: words and signs (the double has no tokenizer)."""
    return max(1, len(re.findall(r"\w+|[^\w\s]", text)))


def digest(*parts: object) -> int:
    """A number that depends on the parts alone, the same on every machine."""
    data = "\0".join(str(part) for part in parts).encode()
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")


@dataclass
class Generation:
    """What one request will answer: token ids, tokens per step (first entry: the prefill's one), finish reason."""

    rid: str
    ids: list[int]
    steps: list[int]
    finish: dict[str, Any]
    prompt_tokens: int
    cached_tokens: int
    text: str | None = None
    delivered: int = 0
    verify_calls: int = 0
    correct_drafts: int = 0
    histogram: list[int] = field(default_factory=list)

    def text_of(self, start: int, end: int) -> str:
        """Text of tokens [start, end); a prescribed text (structured output) comes with the token that ends it."""
        if self.text is not None:
            cut = [len(self.text) * n // max(1, len(self.ids)) for n in (start, end)]
            return self.text[cut[0] : cut[1]]
        return "".join(token_text(token) for token in self.ids[start:end])


def structured_value(schema: dict[str, Any], key: str) -> Any:
    """A small value that satisfies the usual parts of a JSON schema (type, properties, items, enum, const)."""
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][digest(key) % len(schema["enum"])]
    kind = schema.get("type", "object")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        return {name: structured_value(sub, f"{key}.{name}") for name, sub in schema.get("properties", {}).items()}
    if kind == "array":
        return [structured_value(schema.get("items", {"type": "string"}), f"{key}[]")] * max(
            1, schema.get("minItems", 1)
        )
    if kind in ("integer", "number"):
        return int(schema.get("minimum", digest(key) % 100))
    if kind == "boolean":
        return bool(digest(key) % 2)
    if kind == "null":
        return None
    return token_text(100 + digest(key) % 1900).strip(" .") or "ba"


class BadRequest(Exception):
    """A request that SGLang answers with 400."""


def grammar_schema(params: dict[str, Any]) -> dict[str, Any] | None:
    """The JSON schema a request asks for, {} for `json_object`, None when it asks for none."""
    schema = params.get("json_schema")
    response_format = params.get("response_format") or {}
    if response_format.get("type") == "json_object":
        return {}
    if response_format.get("type") == "json_schema":
        schema = (response_format.get("json_schema") or {}).get("schema")
    if schema is None:
        if any(params.get(key) for key in ("regex", "ebnf", "structural_tag")):
            return {}
        return None
    result = json.loads(schema) if isinstance(schema, str) else schema
    if not isinstance(result, dict):
        raise BadRequest("json_schema must be an object")
    return result


# -------------------------------------------------------------------------------------------------------------- engine


class Engine:
    """State of the serving process: status, requests, counters; plans and plays generations. Thread-safe."""

    def __init__(self, settings: dict[str, Any], switches: Switches, scheduler_info: dict[str, Any]) -> None:
        self.settings, self.switches, self.scheduler_info = settings, switches, scheduler_info
        self.lock = threading.Lock()
        self.status = "Starting"
        self.exiting = False
        self.inflight: dict[str, float] = {}
        self.last_receive = 0.0
        self.requests = 0
        self.seen_prompts: set[str] = set()
        self.startup_time = 0.0
        self.prompt_tokens = self.generated_tokens = self.verify_calls = 0
        self.interval_steps = self.interval_tokens = 0
        self.interval_started = time.monotonic()
        self.total_steps = self.total_tokens = 0
        self.last_throughput = self.gauge_accept_length = self.gauge_accept_rate = 0.0

    @property
    def speculating(self) -> bool:
        return self.settings["speculative_algorithm"] is not None

    def faulty(self, number: int) -> bool:
        """Whether the generation faults hold for request `number` (0 = warm-up, never faulty)."""
        return bool(0 < self.switches.from_request <= number)

    def wedged(self) -> bool:
        limit = self.switches.wedge_after_requests
        return bool(0 <= limit <= self.requests and self.status != "Starting")

    def plan(self, prompt: str, prompt_tokens: int, params: dict[str, Any], number: int) -> Generation:
        """Decide the whole answer. `params` holds SGLang's sampling parameters; BadRequest for what SGLang refuses."""
        switches, settings = self.switches, self.settings
        faulty = self.faulty(number)
        schema = grammar_schema(params)
        if schema is not None and settings["grammar_backend"] == "none":
            raise BadRequest(
                "Grammar-based generation (json_schema, regex, ebnf, structural_tag) is not supported "
                "when the server is launched with --grammar-backend none"
            )
        limit = int(params["max_new_tokens"])
        context = settings["context_length"] or 40960
        if limit < 0 or prompt_tokens + 1 > context:
            raise BadRequest(
                f"The input ({prompt_tokens} tokens) is longer than the model's context length ({context} tokens)."
            )
        limit = min(limit, context - prompt_tokens)
        key: list[object] = [settings["model_path"], prompt]
        if float(params["temperature"]) > 0:
            seed = params.get("sampling_seed")
            key += ["sampled", os.urandom(8).hex() if seed is None else seed]
        if faulty and switches.wrong_tokens:
            key.append("wrong")
        natural = 60 + digest("length", *key) % 200
        count = limit if params.get("ignore_eos") else min(limit, natural)
        ids = [100 + digest(*key, index) % 6400 for index in range(count)]
        if faulty and switches.repeated_text:
            ids = [171 + 1] * limit
        finish: dict[str, Any] = {"type": "length", "length": limit}
        if count < limit and not (faulty and switches.repeated_text):
            ids[-1] = EOS_ID
            finish = {"type": "stop", "matched": EOS_ID}
        text: str | None = None
        if schema is not None and not (faulty and switches.grammar_ignored):
            text = json.dumps(structured_value(schema, prompt))
            ids = ids[: max(1, min(len(ids), -(-len(text) // 4)))] or [100]
            finish = {"type": "stop", "matched": EOS_ID}
        for stop in params.get("stop") or []:
            whole = text if text is not None else "".join(token_text(token) for token in ids)
            at = whole.find(stop)
            if at >= 0:
                text = whole[:at]
                ends = [n for n in range(1, len(ids) + 1) if len("".join(map(token_text, ids[:n]))) >= at + len(stop)]
                ids = ids[: ends[0]] if ends else ids
                finish = {"type": "stop", "matched": stop}
        if faulty and switches.empty_text:
            ids, finish = [], {"type": "stop", "matched": EOS_ID}
        with self.lock:
            cached = prompt_tokens - 1 if prompt in self.seen_prompts and not settings["disable_radix_cache"] else 0
            self.seen_prompts.add(prompt)
        return Generation(uuid.uuid4().hex, ids, self.plan_steps(len(ids), key), finish, prompt_tokens, cached, text)

    def plan_steps(self, tokens: int, key: list[object]) -> list[int]:
        """Tokens per step: one from the prefill, then 1 per step, or a verified block around the acceptance length."""
        if tokens == 0:
            return []
        steps, left = [1], tokens - 1
        while left > 0:
            block = 1
            if self.speculating:
                mean = self.switches.accept_length
                draw = digest("accept", *key, left) % 1000
                block = int(mean) + (draw < (mean - int(mean)) * 1000)
                if 2 <= block < self.settings["speculative_num_draft_tokens"]:
                    block += digest("jitter", *key, left) % 3 - 1
                block = max(1, min(block, self.settings["speculative_num_draft_tokens"]))
            steps.append(min(block, left))
            left -= steps[-1]
        return steps

    def play(self, generation: Generation, number: int) -> Iterator[tuple[int, int]]:
        """Generate in real time: yields (start, end) token ranges, one per flushed step. May hang for ever."""
        with self.lock:
            self.inflight[generation.rid] = time.time()
        try:
            if number and 0 <= self.switches.wedge_after_requests < number:
                log(f"[double] request {number} hangs", prefix=" TP0")
                while True:
                    time.sleep(3600)
            time.sleep(self.switches.prefill_s)
            delay = self.switches.step_s * (self.switches.slow_factor if self.faulty(number) else 1.0)
            flushed = 0
            for index, tokens in enumerate(generation.steps):
                if index:
                    time.sleep(delay)
                    generation.verify_calls += self.speculating
                    generation.correct_drafts += tokens - 1
                    if self.speculating:
                        generation.histogram += [0] * (tokens - len(generation.histogram))
                        generation.histogram[tokens - 1] += 1
                    self.account(tokens)
                generation.delivered += tokens
                self.last_receive = time.time()
                if (
                    generation.delivered - flushed >= self.settings["stream_interval"]
                    or index == len(generation.steps) - 1
                ):
                    yield flushed, generation.delivered
                    flushed = generation.delivered
            with self.lock:
                self.prompt_tokens += generation.prompt_tokens
                self.generated_tokens += generation.delivered
                self.verify_calls += generation.verify_calls
        finally:
            with self.lock:
                self.inflight.pop(generation.rid, None)

    def account(self, tokens: int) -> None:
        """Count one decode step; every --decode-log-interval steps log a line and refresh what the metrics show."""
        with self.lock:
            self.interval_steps += 1
            self.interval_tokens += tokens
            if self.interval_steps < self.settings["decode_log_interval"]:
                return
            steps, produced = self.interval_steps, self.interval_tokens
            elapsed = max(1e-6, time.monotonic() - self.interval_started)
            self.interval_steps = self.interval_tokens = 0
            self.interval_started = time.monotonic()
            self.last_throughput = produced / elapsed
            speculation = ""
            if self.speculating:
                self.total_steps += steps
                self.total_tokens += produced
                drafts = max(1, steps * (self.settings["speculative_num_draft_tokens"] - 1))
                self.gauge_accept_length = produced / steps
                self.gauge_accept_rate = (produced - steps) / drafts
                speculation = f"accept len: {produced / steps:.2f}, accept rate: {self.gauge_accept_rate:.2f}, "
            running = len(self.inflight)
        log(
            f"Decode batch, #running-req: {running}, #token: {produced}, token usage: 0.00, {speculation}"
            f"cuda graph: {not self.settings['disable_cuda_graph']}, "
            f"gen throughput (token/s): {self.last_throughput:.2f}, #queue-req: 0"
        )

    def meta_info(self, generation: Generation, *, finished: bool, number: int) -> dict[str, Any]:
        """`meta_info` of /generate: always the counts so far; speculation figures only when finished, as in SGLang."""
        meta: dict[str, Any] = {
            "id": generation.rid,
            "finish_reason": generation.finish if finished else None,
            "prompt_tokens": generation.prompt_tokens,
            "weight_version": self.settings["weight_version"],
            "num_retractions": 0,
            "reasoning_tokens": 0,
            "completion_tokens": generation.delivered,
            "cached_tokens": generation.cached_tokens,
        }
        if finished:
            meta["e2e_latency"] = time.time() - self.inflight.get(generation.rid, time.time())
            if generation.verify_calls:
                proposed = generation.verify_calls * (self.settings["speculative_num_draft_tokens"] - 1)
                meta["spec_accept_rate"] = generation.correct_drafts / proposed if proposed else 0.0
                meta["spec_accept_length"] = generation.delivered / generation.verify_calls
                meta["spec_num_correct_drafts"] = meta["spec_accepted_drafts"] = generation.correct_drafts
                meta["spec_num_proposed_drafts"] = meta["spec_proposed_drafts"] = proposed
                meta["spec_verify_ct"] = generation.verify_calls
                meta["spec_correct_drafts_histogram"] = meta["spec_accept_histogram"] = generation.histogram
        if self.faulty(number) and self.switches.missing_finish_reason:
            del meta["finish_reason"]
        if self.faulty(number) and self.switches.missing_usage:
            for name in ("prompt_tokens", "completion_tokens", "cached_tokens"):
                del meta[name]
        return meta

    def server_info(self) -> dict[str, Any]:
        """/server_info: settings, the scheduler's hand-shake, internal_states, version; wrong keys come in last."""
        state: dict[str, Any] = {
            **self.settings,
            "last_gen_throughput": self.last_throughput,
            "memory_usage": {
                "weight": 0.0,
                "kvcache": 0.0,
                "token_capacity": self.scheduler_info["max_total_num_tokens"],
                "graph": 0.0,
            },
            "startup_time": self.startup_time,
            "effective_max_running_requests_per_dp": self.settings["max_running_requests"] or 256,
        }
        if self.total_steps:
            state["avg_spec_accept_length"] = self.total_tokens / self.total_steps
        info = {
            **self.settings,
            **self.scheduler_info,
            "startup_time": self.startup_time,
            "internal_states": [state],
            "version": self.switches.version,
            "kv_events": None,
        }
        wrong = dict(self.switches.wrong_server_info)
        if "avg_spec_accept_length" in wrong:
            state["avg_spec_accept_length"] = wrong.pop("avg_spec_accept_length")
        info.update(wrong)
        state.update({key: value for key, value in wrong.items() if key in state})
        return info

    def metrics(self) -> str:
        """The Prometheus text of /metrics. A server without speculation has the gauges at 0.0 and no spec counter."""
        name = self.settings["served_model_name"]
        labels = f'{{engine_type="unified",model_name="{name}",moe_ep_rank="0",pp_rank="0",tp_rank="0"}}'
        gauges = {
            "num_running_reqs": float(len(self.inflight)),
            "num_queue_reqs": 0.0,
            "gen_throughput": self.last_throughput if self.inflight else 0.0,
            "token_usage": 0.0,
            "cache_hit_rate": 0.0,
            "spec_accept_length": self.gauge_accept_length,
            "spec_accept_rate": self.gauge_accept_rate,
            "spec_num_steps": float(self.settings["speculative_num_steps"] or 0),
            "spec_num_draft_tokens": float(self.settings["speculative_num_draft_tokens"] or 0)
            if self.speculating
            else 0.0,
            "max_total_num_tokens": float(self.scheduler_info["max_total_num_tokens"]),
            "startup_time_seconds": self.startup_time,
        }
        counters = {"prompt_tokens_total": self.prompt_tokens, "generation_tokens_total": self.generated_tokens}
        if self.verify_calls:
            counters["spec_verify_calls_total"] = self.verify_calls
        lines = []
        for name, value in gauges.items():
            lines += [f"# HELP sglang:{name} {name}", f"# TYPE sglang:{name} gauge", f"sglang:{name}{labels} {value}"]
        model = f'{{model_name="{self.settings["served_model_name"]}"}}'
        for name, number in counters.items():
            lines += [
                f"# HELP sglang:{name} {name}",
                f"# TYPE sglang:{name} counter",
                f"sglang:{name}{model} {float(number)}",
            ]
        return "\n".join(lines) + "\n"


# ---------------------------------------------------------------------------------------------------------------- HTTP


class Server(ThreadingHTTPServer):
    """The listening side; `engine` answers. The socket is bound by `bind_socket` so that a child can inherit it."""

    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def __init__(self, listener: socket.socket, engine: Engine) -> None:
        self.engine = engine
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.server_name, self.server_port = listener.getsockname()[:2]
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event worth a traceback in the log."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class CutConnection(Exception):
    """Raised to drop the connection in the middle of an answer."""


class Handler(BaseHTTPRequestHandler):
    """SGLang's routes."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def log_message(self, format: str, *args: object) -> None:
        """Access lines are written by `answer`, in uvicorn's words."""

    # ---- plumbing

    def access_line(self, code: int) -> None:
        host, port = self.client_address[:2]
        log(f'INFO:     {host}:{port} - "{self.requestline}" {code} {self.responses[code][0]}')

    def answer(self, code: int, body: object = b"", *, kind: str = "application/json") -> None:
        """Send a whole answer; anything but bytes is sent as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.access_line(code)
        self.send_response_only(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def start_stream(self) -> None:
        self.access_line(200)
        self.send_response_only(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()

    def event(self, data: object) -> None:
        """One SSE event, one HTTP chunk; a str is sent as it is ([DONE])."""
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        payload = f"data: {text}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(payload), payload))
        self.wfile.flush()

    def end_stream(self, number: int) -> None:
        engine = self.server.engine
        if not (engine.faulty(number) and engine.switches.no_done):
            self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def error(self, code: int, message: str, kind: str = "BadRequestError") -> None:
        """SGLang's OpenAI-style error object."""
        self.answer(code, {"object": "error", "message": message, "type": kind, "param": None, "code": code})

    def allowed(self, path: str) -> bool:
        key = self.server.engine.settings["api_key"]
        if not key or path.startswith(("/health", "/metrics")):
            return True
        given = self.headers.get("Authorization", "")
        return hmac.compare_digest(given.encode(errors="replace"), f"Bearer {key}".encode())

    # ---- routes

    def do_GET(self) -> None:
        self.route()

    def do_POST(self) -> None:
        self.route()

    def route(self) -> None:
        path = self.path.split("?")[0]
        length = int(self.headers.get("Content-Length") or 0)
        raw = self.rfile.read(length) if length else b""
        engine = self.server.engine
        if not self.allowed(path):
            self.answer(401, {"error": "Unauthorized"})
            return
        generating = {
            "/generate": self.generate,
            "/v1/completions": self.completions,
            "/v1/chat/completions": self.chat,
        }
        if self.command == "POST" and path in generating:
            try:
                body = json.loads(raw)
                if not isinstance(body, dict):
                    raise ValueError("the body is no JSON object")
            except ValueError as error:
                self.error(400, f"Invalid JSON body: {error}")
                return
            number = 0
            if self.headers.get("X-Warmup") != "1":
                with engine.lock:
                    engine.requests += 1
                    number = engine.requests
            if self.spoiled(number):
                return
            try:
                generating[path](body, number)
            except BadRequest as error:
                self.error(400, str(error))
            except CutConnection:
                self.close_connection = True
                with contextlib.suppress(OSError):
                    self.connection.shutdown(socket.SHUT_RDWR)
        elif path in ("/health", "/health_generate"):
            self.health(path)
        elif path in ("/server_info", "/get_server_info"):
            if engine.wedged() and engine.switches.wedge_health == "503":
                time.sleep(3600)
            self.answer(200, engine.server_info())
        elif path in ("/model_info", "/get_model_info"):
            settings = engine.settings
            self.answer(
                200,
                {
                    "model_path": settings["model_path"],
                    "tokenizer_path": settings["tokenizer_path"],
                    "is_generation": True,
                    "preferred_sampling_params": None,
                    "weight_version": settings["weight_version"],
                    "has_image_understanding": False,
                    "has_audio_understanding": False,
                    "model_type": "qwen3",
                    "architectures": ["Qwen3ForCausalLM"],
                },
            )
        elif path == "/v1/models":
            name = engine.switches.wrong_served_model or engine.settings["served_model_name"]
            card = {
                "id": name,
                "object": "model",
                "created": int(time.time()),
                "owned_by": "sglang",
                "root": name,
                "parent": None,
            }
            self.answer(
                200, {"object": "list", "data": [{**card, "max_model_len": engine.settings["context_length"] or 40960}]}
            )
        elif path == "/flush_cache":
            self.flush_cache()
        elif path == "/metrics" and engine.settings["enable_metrics"]:
            self.answer(200, engine.metrics().encode(), kind="text/plain; version=0.0.4; charset=utf-8")
        else:
            self.answer(404, {"detail": "Not Found"})

    def spoiled(self, number: int) -> bool:
        """Answer with a fault that needs no generation; False when there is none."""
        engine = self.server.engine
        if not engine.faulty(number):
            return False
        if engine.switches.answer_500:
            self.error(500, "Internal server error", "InternalServerError")
            return True
        if engine.switches.nonsense_json:
            self.answer(200, b'{"choices": [{"text": NaN-ish <html>\x00')
            return True
        return False

    def health(self, path: str) -> None:
        """Both routes, as in SGLang: 503 while starting or exiting, else the scheduler must be heard."""
        engine, switches = self.server.engine, self.server.engine.switches
        time.sleep(switches.slow_health_s)
        if engine.exiting or engine.status == "Starting":
            self.answer(503)
            return
        if switches.health_503_while_busy and engine.inflight:
            self.answer(503)
            return
        if path == "/health" and os.environ.get("SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION", "").lower() in (
            "false",
            "0",
        ):
            self.answer(200)
            return
        dead = engine.wedged() and switches.wedge_health == "503"
        deadline = time.monotonic() + switches.health_timeout_s
        while time.monotonic() < deadline:
            time.sleep(switches.health_poll_s)
            if not dead:
                engine.last_receive = time.time()
                engine.status = "Up"
                self.answer(200)
                return
        log(
            f"Health check failed. Server couldn't get a response from detokenizer for last "
            f"{switches.health_timeout_s:g} seconds. "
            f"last_heartbeat time: {time.strftime('%H:%M:%S', time.localtime(engine.last_receive))}"
        )
        engine.status = "UnHealthy"
        self.answer(503)

    def flush_cache(self) -> None:
        engine = self.server.engine
        with engine.lock:
            busy = len(engine.inflight)
            if not busy:
                engine.seen_prompts.clear()
        if busy:
            log(f"Cache not flushed because there are pending requests. #queue-req: 0, #running-req: {busy}")
            self.answer(400, b"Flush cache failed.\n", kind="text/plain")
            return
        log("Cache flushed successfully!")
        self.answer(
            200,
            b"Cache flushed.\nPlease check backend logs for more details. "
            b"(When there are running or waiting requests, the operation will not be performed.)\n",
            kind="text/plain",
        )

    # ---- generation

    def sampling(self, body: dict[str, Any], limit: int) -> dict[str, Any]:
        """OpenAI body -> SGLang's sampling parameters; BadRequest for what the double does not imitate."""
        if (body.get("n") or 1) != 1 or body.get("best_of", 1) not in (None, 1):
            raise BadRequest("the double imitates n = 1 only")
        stop = body.get("stop") or []
        return {
            "temperature": 1.0 if body.get("temperature") is None else body["temperature"],
            "max_new_tokens": limit,
            "ignore_eos": body.get("ignore_eos", False),
            "sampling_seed": body.get("seed"),
            "stop": [stop] if isinstance(stop, str) else stop,
            "response_format": body.get("response_format"),
            **{key: body.get(key) for key in ("json_schema", "regex", "ebnf", "structural_tag")},
        }

    def chunks(self, generation: Generation, number: int) -> Iterator[tuple[int, int]]:
        """Played steps of a stream, with the stream's faults after the wanted number of chunks."""
        engine = self.server.engine
        for index, step in enumerate(engine.play(generation, number)):
            if engine.faulty(number):
                if 0 <= engine.switches.truncate_stream_after <= index:
                    raise CutConnection
                if 0 <= engine.switches.stream_error_after <= index:
                    error = {
                        "object": "error",
                        "message": "double: error in the stream",
                        "type": "INTERNAL_SERVER_ERROR",
                    }
                    self.event({"error": {**error, "param": None, "code": 500}})
                    self.end_stream(number)
                    raise CutConnection
            yield step

    def generate(self, body: dict[str, Any], number: int) -> None:
        """SGLang's own route: cumulative text, output_ids and meta_info in every event."""
        engine = self.server.engine
        params = {"max_new_tokens": 128, "temperature": 1.0, **(body.get("sampling_params") or {})}
        if isinstance(params.get("stop"), str):
            params["stop"] = [params["stop"]]
        text, input_ids = body.get("text"), body.get("input_ids")
        if isinstance(text, str):
            prompt, tokens = text, count_tokens(text)
        elif isinstance(input_ids, list) and input_ids and all(isinstance(token, int) for token in input_ids):
            prompt, tokens = "ids:" + " ".join(map(str, input_ids)), len(input_ids)
        else:
            raise BadRequest("either text or input_ids must be given (the double imitates no batches)")
        generation = engine.plan(prompt, tokens, params, number)

        def result(finished: bool) -> dict[str, Any]:
            return {
                "text": generation.text_of(0, generation.delivered),
                "output_ids": generation.ids[: generation.delivered],
                "meta_info": engine.meta_info(generation, finished=finished, number=number),
            }

        if not body.get("stream"):
            answer = result(True)
            for _, end in engine.play(generation, number):
                if end == len(generation.ids):
                    answer = result(True)
            self.answer(200, answer)
            return
        self.start_stream()
        for _, end in self.chunks(generation, number):
            self.event(result(end == len(generation.ids)))
        if not generation.ids:
            self.event(result(True))
        self.end_stream(number)

    def completions(self, body: dict[str, Any], number: int) -> None:
        prompt = body.get("prompt")
        if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
            text, tokens = "ids:" + " ".join(map(str, prompt)), len(prompt)
        elif isinstance(prompt, str):
            text, tokens = prompt, count_tokens(prompt)
        else:
            raise BadRequest("prompt must be a text or a list of token ids (the double imitates no batches)")
        limit = 16 if body.get("max_tokens") is None else int(body["max_tokens"])
        self.openai(body, number, text, tokens, limit, chat=False)

    def chat(self, body: dict[str, Any], number: int) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise BadRequest("messages must be a non-empty list")
        parts = [
            f"<|im_start|>{m.get('role')}\n{m.get('content')}<|im_end|>\n" for m in messages if isinstance(m, dict)
        ]
        text = "".join(parts) + "<|im_start|>assistant\n"
        asked = body.get("max_completion_tokens") or body.get("max_tokens")
        self.openai(body, number, text, count_tokens(text), 8192 if asked is None else int(asked), chat=True)

    def openai(self, body: dict[str, Any], number: int, prompt: str, tokens: int, limit: int, *, chat: bool) -> None:
        """Both OpenAI routes: the model name of the request is echoed, whatever it is."""
        engine = self.server.engine
        generation = engine.plan(prompt, tokens, self.sampling(body, limit), number)
        faulty = engine.faulty(number)
        no_usage = faulty and engine.switches.missing_usage
        model = body.get("model") or "default"
        head = {"id": generation.rid, "created": int(time.time()), "model": model}
        kind, matched = generation.finish["type"], generation.finish.get("matched")
        ending = {
            "finish_reason": None if faulty and engine.switches.missing_finish_reason else kind,
            "matched_stop": matched,
        }
        open_end = {"finish_reason": None, "matched_stop": None}

        def usage() -> dict[str, Any]:
            done, cached = generation.delivered, generation.cached_tokens
            details = {"cached_tokens": cached} if cached and engine.settings["enable_cache_report"] else None
            counts = {"prompt_tokens": tokens, "total_tokens": tokens + done, "completion_tokens": done}
            return {**counts, "prompt_tokens_details": details, "reasoning_tokens": 0}

        if not body.get("stream"):
            meta: dict[str, Any] = {}
            for _, end in engine.play(generation, number):
                if end == len(generation.ids):
                    meta = engine.meta_info(generation, finished=True, number=number)
            text = generation.text_of(0, generation.delivered)
            message = {"role": "assistant", "content": text.lstrip(), "reasoning_content": None, "tool_calls": None}
            choice: dict[str, Any] = {
                "index": 0,
                **({"message": message} if chat else {"text": text}),
                "logprobs": None,
                **ending,
            }
            if chat and body.get("return_meta_info"):
                choice["meta_info"] = meta
            if faulty and engine.switches.missing_finish_reason:
                del choice["finish_reason"]
            answer = {**head, "object": "chat.completion" if chat else "text_completion", "choices": [choice]}
            if not no_usage:
                answer["usage"] = usage()
            self.answer(200, {**answer, "metadata": {"weight_version": engine.settings["weight_version"]}})
            return

        options = body.get("stream_options") or {}
        continuous = bool(options.get("continuous_usage_stats")) and not no_usage
        self.start_stream()
        head["object"] = "chat.completion.chunk" if chat else "text_completion"

        def delta(values: dict[str, Any], end: dict[str, Any]) -> None:
            choice = {"index": 0, "delta": {"reasoning_content": None, **values}, "logprobs": None, **end}
            event: dict[str, Any] = {**head, "choices": [choice]}
            if continuous and "content" in values:
                event["usage"] = usage()
            self.event(event)

        if chat:
            delta({"role": "assistant", "content": ""}, open_end)
        for start, stop in self.chunks(generation, number):
            text = generation.text_of(start, stop)
            if chat:
                if text:
                    delta({"content": text.lstrip() if start == 0 else text}, open_end)
                continue
            closing = ending if stop == len(generation.ids) else open_end
            choice = {"index": 0, "text": text, "logprobs": None, **closing}
            self.event({**head, "choices": [choice], "usage": usage() if continuous else None})
        if chat:
            delta({}, ending)
        elif not generation.ids:
            self.event({**head, "choices": [{"index": 0, "text": "", "logprobs": None, **ending}], "usage": None})
        if options.get("include_usage") and not no_usage:
            counts = usage()
            if not chat:
                counts = {key: value for key, value in counts.items() if value is not None}
            self.event({**head, "choices": [], "usage": counts})
        self.end_stream(number)


# ----------------------------------------------------------------------------------------------------------- processes


def set_process(name: str, *, die_with_parent: bool) -> None:
    """Set comm (15 characters are kept) and, for SGLang's ordinary children, PR_SET_PDEATHSIG = SIGKILL."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(15, name.encode(), 0, 0, 0)
    if die_with_parent:
        libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)


def descendants(pid: int) -> list[int]:
    """Pids below `pid` by the parent-child chain, as a tree kill sees them: re-parented processes are not found."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError, ValueError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        below = children.get(queue.pop(), [])
        found += below
        queue += below
    return found


def kill_tree(*, itself: bool = True) -> None:
    """SIGKILL the own tree, itself included: how SGLang ends after a crash and after a drained SIGTERM."""
    for pid in descendants(os.getpid()):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if itself:
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)


def eat_memory(megabytes: int) -> list[bytearray]:
    """Allocate and touch `megabytes` MiB in steps of 8 MiB."""
    log(f"[double] allocating up to {megabytes} MiB", prefix=" TP0")
    return [bytearray(b"\x01" * (8 << 20)) for _ in range(max(1, megabytes // 8))]


def spawn(name: str, run: Any, keep: list[int]) -> tuple[int, int]:
    """Fork a child that runs `run(control)` and ends when its control pipe closes; returns (pid, write end).

    `keep` lists the parent's other pipe ends; the child closes them, so that only the parent holds them open.
    """
    control, handle = os.pipe()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(control)
        return pid, handle
    code = 1
    try:
        set_process(name, die_with_parent=True)
        if os.getppid() != parent:
            os._exit(1)
        for signum in (signal.SIGTERM, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for descriptor in [*keep, handle]:
            os.close(descriptor)
        run(control)
        code = 0
    except BaseException as error:
        log(f"[double] {name} ended by {error!r}")
    finally:
        os._exit(code)


class Launcher:
    """The start, the life and the end of the server process."""

    def __init__(self, settings: dict[str, Any], switches: Switches) -> None:
        self.settings, self.switches = settings, switches
        self.children: dict[int, str] = {}
        self.controls: list[int] = []
        self.term = threading.Event()
        self.watch = threading.Event()
        self.engine: Engine | None = None

    # ---- scheduler child

    def scheduler(self, control: int, rank: int, report: int) -> None:
        """Phases of one scheduler process; writes its hand-shake to `report`, then waits for the end of `control`."""
        switches, settings = self.switches, self.settings
        prefix = f" TP{rank}" if settings["tp_size"] > 1 else ""
        kept: list[bytearray] = []
        log("Init torch distributed begin.", prefix=prefix)
        log("Load weight begin. avail mem=94.32 GB", prefix=prefix)
        if switches.eat_memory_mb and switches.eat_memory_phase == "load" and rank == 0:
            kept += eat_memory(switches.eat_memory_mb)
        shard = 0
        while switches.endless_load:
            time.sleep(1.0)
            shard += 1
            if not switches.endless_load_silent:
                log(
                    f"Loading safetensors checkpoint shards:   0% Completed | 0/8 [{shard:02d}:00<?, ?it/s]",
                    prefix=prefix,
                )
        time.sleep(switches.load_s)
        crash = CRASHES.get(switches.crash_with)
        if crash and crash.where == "scheduler" and rank == 0:
            log(f"Scheduler hit an exception: {traceback_text(crash)}\n", prefix=prefix)
            os.kill(os.getppid(), signal.SIGQUIT)
            time.sleep(60)
        log(
            f"Load weight end. elapsed={switches.load_s:.2f} s, type=Qwen3ForCausalLM, "
            "avail mem=78.91 GB, mem usage=15.41 GB.",
            prefix=prefix,
        )
        time.sleep(switches.kv_s)
        tokens = 400_000 if settings["speculative_algorithm"] in (None, "NGRAM") else 266_667
        log(
            f"KV Cache is allocated. dtype: torch.bfloat16, #tokens: {tokens}, K size: 27.50 GB, V size: 27.50 GB",
            prefix=prefix,
        )
        log("Memory pool end. avail mem=22.80 GB", prefix=prefix)
        if not settings["disable_cuda_graph"]:
            kind = "verify" if settings["speculative_algorithm"] else "decode"
            width = settings["speculative_num_draft_tokens"] or 1
            log(
                f"Capture target {kind} CUDA graph begin. backend=full, "
                f"num_tokens_per_req={width}, bs=[1, 2, 4, 8], avail mem=22.61 GB",
                prefix=prefix,
            )
            time.sleep(switches.graph_s)
            log(
                f"Capture target {kind} CUDA graph end. elapsed={switches.graph_s:.2f} s, "
                "mem usage=0.42 GB, avail mem=22.19 GB.",
                prefix=prefix,
            )
        info = {
            "status": "ready",
            "max_total_num_tokens": tokens,
            "max_req_input_len": (settings["context_length"] or 40960) - 6,
        }
        log(
            f"max_total_num_tokens={tokens}, chunked_prefill_size=8192, "
            f"max_prefill_tokens={settings['max_prefill_tokens']}, "
            f"max_running_requests={settings['max_running_requests'] or 256}, "
            f"context_len={settings['context_length'] or 40960}, "
            "available_gpu_mem=22.19 GB",
            prefix=prefix,
        )
        os.write(report, json.dumps(info).encode())
        os.close(report)
        if switches.eat_memory_mb and switches.eat_memory_phase == "ready" and rank == 0:
            os.read(control, 1)  # the parent says that the server is ready
            kept += eat_memory(switches.eat_memory_mb)
        while os.read(control, 1):
            pass

    def escape(self, keep: list[int]) -> None:
        """Leave a scheduler behind that no parent-child walk and no SIGTERM reaches; it ends after `escape_s`."""
        if os.fork():
            os.wait()
            return
        os.setsid()
        if os.fork():
            os._exit(0)
        set_process("sglang::scheduler_TP0", die_with_parent=False)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):
            signal.signal(signum, signal.SIG_IGN)
        for descriptor in keep:
            os.close(descriptor)
        log(f"[double] scheduler {os.getpid()} left the process tree")
        time.sleep(self.switches.escape_s)
        os._exit(0)

    # ---- crashes

    def die(self, message: str) -> NoReturn:
        """A crash of the running server: crash_exit when given, else the tree kill, itself included."""
        log(message)
        self.watch.clear()
        if self.switches.crash_exit >= 0:
            kill_tree(itself=False)
            os._exit(self.switches.crash_exit)
        kill_tree()
        os._exit(1)

    def exit_at_import(self, text: str) -> NoReturn:
        """A plain Python death: traceback on stderr, exit 1 (or crash_exit)."""
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
        kill_tree(itself=False)
        os._exit(self.switches.crash_exit if self.switches.crash_exit >= 0 else 1)

    def crash_later(self, seconds: float, what: str) -> None:
        def run() -> None:
            time.sleep(max(0.0, seconds))
            frames = [
                *_SCHEDULER,
                f'  File "{_SITE}/sglang/srt/managers/scheduler.py", line 1502, in event_loop_overlap',
            ]
            crash = Crash(
                "scheduler",
                tuple(frames),
                f"RuntimeError: CUDA error: an illegal memory access was encountered ({what})",
            )
            log(f"Scheduler hit an exception: {traceback_text(crash)}\n")
            self.die("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")

        threading.Thread(target=run, daemon=True).start()

    def watch_children(self) -> None:
        """Reap children; one that died on its own ends the server after a pause, with SGLang's crash wording."""
        while True:
            time.sleep(0.1)
            if not self.watch.is_set():
                continue
            for pid, name in list(self.children.items()):
                try:
                    done, status = os.waitpid(pid, os.WNOHANG)
                except ChildProcessError:
                    continue
                if not done or not self.watch.is_set():
                    continue
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                if code == 0:
                    continue
                log(f"Subprocess {name} (pid={pid}) crashed with exit code {code}. Triggering SIGQUIT for cleanup...")
                log("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")
                time.sleep(self.switches.crash_pause_s)
                self.die("Killing the process tree.")

    # ---- start

    def bind_socket(self) -> socket.socket:
        """Bind the service port; on failure the uvicorn words and exit 1."""
        host, port = self.settings["host"], self.switches.bind_port or self.settings["port"]
        listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if self.switches.reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            if self.switches.crash_with == "address_in_use":
                raise OSError(errno.EADDRINUSE, "address already in use")
            listener.bind((host, port))
            if not self.switches.escaped_child_holds_port:
                # Linux lets two bound sockets coexist until one listens, with SO_REUSEADDR: find the clash now
                listener.listen(128)
        except OSError as error:
            number = error.errno if error.errno is not None else 0
            log(
                f"ERROR:    [Errno {number}] error while attempting to bind on address "
                f"('{host}', {port}): {os.strerror(number).lower()}"
            )
            self.exit_at_import(f"[{time.strftime('%Y-%m-%d %H:%M:%S')}] INFO:     Waiting for application shutdown.")
        return listener

    def wait_schedulers(self, reports: list[int]) -> dict[str, Any]:
        """Read every scheduler's hand-shake; one that dies before it ends the launch with EOFError, exit 1."""
        info: dict[str, Any] = {}
        for rank, report in enumerate(reports):
            data = b""
            while True:
                part = os.read(report, 65536)
                if not part:
                    break
                data += part
            os.close(report)
            if not data:
                pid = next(pid for pid, name in self.children.items() if name == f"scheduler_{rank}")
                _, status = os.waitpid(pid, 0)
                code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
                log(f"Rank {rank} scheduler is dead. Please check if there are relevant logs.")
                log(f"Exit code: {code}")
                self.exit_at_import(traceback_text(Crash("import", _LAUNCH, "EOFError")))
            info = json.loads(data)
        return info

    def start(self) -> None:
        """Run the server until a signal ends it. Does not return normally."""
        switches, settings = self.switches, self.settings
        signal.signal(signal.SIGQUIT, self.on_launch_sigquit)
        if switches.crash_after_s >= 0:
            self.crash_later(switches.crash_after_s - (time.monotonic() - T0), "double: crash_after_s")
        crash = CRASHES.get(switches.crash_with)
        if crash and crash.where == "import":
            self.exit_at_import(traceback_text(crash))
        for name in ("model_path", "speculative_draft_model_path") if switches.check_paths else ():
            if settings[name] and not Path(settings[name]).is_dir():
                error = f"OSError: Can't load the configuration of '{settings[name]}': no such directory."
                self.exit_at_import(traceback_text(Crash("import", _LAUNCH, error)))
        for line in HARMLESS_LINES:
            log(line)
        secret = {key: "***" for key in ("api_key", "admin_api_key") if settings[key]}
        log(
            "server_args=ServerArgs("
            + ", ".join(f"{key}={value!r}" for key, value in {**settings, **secret}.items())
            + ")"
        )
        if switches.leak_shm_bytes:
            Path(f"/dev/shm/psm_sglang_double_{os.getpid()}").write_bytes(b"\0" * switches.leak_shm_bytes)
        early = self.bind_socket() if switches.escaped_child_holds_port else None
        if switches.escaped_child or early:
            self.escape([])
        reports: list[int] = []
        for rank in range(settings["tp_size"]):
            reader, writer = os.pipe()
            name = f"sglang::scheduler_TP{rank}" if settings["tp_size"] > 1 else "sglang::scheduler"

            def run(control: int, rank: int = rank, writer: int = writer) -> None:
                self.scheduler(control, rank, writer)

            self.adopt(f"scheduler_{rank}", spawn(name, run, [*self.controls, *reports, reader]))
            os.close(writer)
            reports.append(reader)
        self.adopt(
            "detokenizer", spawn("sglang::detokenizer", lambda control: os.read(control, 1), [*self.controls, *reports])
        )
        info = self.wait_schedulers(reports)
        self.engine = engine = Engine(settings, switches, info)
        signal.signal(signal.SIGTERM, signal.SIG_IGN if switches.ignore_sigterm else self.on_sigterm)
        self.watch.set()
        threading.Thread(target=self.watch_children, daemon=True).start()
        log(f"INFO:     Started server process [{os.getpid()}]")
        log("INFO:     Waiting for application startup.")
        threading.Thread(target=self.warm_up, daemon=True).start()
        log("INFO:     Application startup complete.")
        if settings["skip_server_warmup"]:
            time.sleep(0.05)  # the ready line comes before the port is bound
        time.sleep(switches.bind_late_s)
        server = Server(early or self.bind_socket(), engine)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()
        host, port = server.socket.getsockname()[:2]
        log(f"INFO:     Uvicorn running on http://{host}:{port} (Press CTRL+C to quit)")
        if switches.log_flood_per_s:
            threading.Thread(target=self.flood, daemon=True).start()
        self.serve()

    def adopt(self, name: str, child: tuple[int, int]) -> None:
        self.children[child[0]] = name
        self.controls.append(child[1])

    def warm_up(self) -> None:
        """SGLang's warm-up thread: asks its own URL, whoever answers there, and then says ready."""
        engine, settings = self.engine, self.settings
        assert engine is not None
        if not settings["skip_server_warmup"]:
            url = f"http://{settings['host']}:{settings['port']}"
            headers = {"Content-Type": "application/json", "X-Warmup": "1"}
            if settings["api_key"]:
                headers["Authorization"] = f"Bearer {settings['api_key']}"
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            for _ in range(120):
                time.sleep(self.switches.warmup_poll_s)
                with (
                    contextlib.suppress(OSError),
                    opener.open(urllib.request.Request(url + "/model_info", headers=headers), timeout=5),
                ):
                    break
            else:
                self.die("Initialization failed. warmup error: connection refused")
            while self.switches.endless_warmup:
                time.sleep(60)
            time.sleep(self.switches.warmup_s)
            body = {"text": "The capital city of France is", "sampling_params": {"temperature": 0, "max_new_tokens": 8}}
            request = urllib.request.Request(url + "/generate", json.dumps(body).encode(), headers)
            try:
                with opener.open(request, timeout=600) as answer:
                    answer.read()
            except OSError as error:
                self.die(f"Initialization failed. warmup error: {error}")
        engine.startup_time = time.monotonic() - T0
        engine.status = "Up"
        log("The server is fired up and ready to roll!")
        if self.switches.crash_after_ready_s >= 0:
            self.crash_later(self.switches.crash_after_ready_s, "double: crash_after_ready_s")
        if self.switches.eat_memory_mb and self.switches.eat_memory_phase == "ready":
            os.write(self.controls[0], b"r")

    def flood(self) -> None:
        line = 0
        while True:
            burst = max(1, self.switches.log_flood_per_s // 20)
            os.write(2, b"".join(b"[double] flood line %d\n" % (line + i) for i in range(burst)))
            line += burst
            time.sleep(0.05)

    # ---- stop

    def on_launch_sigquit(self, *_: object) -> None:
        if self.engine is None:
            self.die("Received sigquit from a child process. It usually means the child failed.")
        self.die("SIGQUIT received. signum=3, frame=None. It usually means one child failed.")

    def on_sigterm(self, *_: object) -> None:
        log("SIGTERM received. signum=15 frame=None. Draining requests and shutting down...")
        if self.engine is not None:
            self.engine.exiting = True
        self.term.set()

    def serve(self) -> NoReturn:
        """Wait for SIGTERM at SGLang's tick, drain without limit, ask the schedulers to end, end."""
        engine, tick = self.engine, self.switches.term_poll_s
        assert engine is not None
        while not engine.exiting:
            time.sleep(tick)
        while True:
            if engine.status == "UnHealthy":
                log("Signal SIGTERM received while health check failed. Force exiting.")
                break
            if os.environ.get("SGL_FORCE_SHUTDOWN", "").lower() in ("1", "true"):
                log("Signal SIGTERM received while force shutdown flag set. Force exiting.")
                break
            remaining = list(engine.inflight)
            log(
                f"Gracefully exiting... Remaining number of requests {len(remaining)}. "
                f"Remaining requests remaining_rids={remaining}."
            )
            if not remaining:
                break
            time.sleep(tick)
        time.sleep(self.switches.slow_stop_s)
        self.watch.clear()
        for control in self.controls:
            os.close(control)
        deadline = time.monotonic() + 15
        for pid in self.children:
            while time.monotonic() < deadline:
                with contextlib.suppress(ChildProcessError):
                    if os.waitpid(pid, os.WNOHANG) == (0, 0):
                        time.sleep(0.02)
                        continue
                break
        if self.switches.stop_style == "exit0":
            kill_tree(itself=False)
            os._exit(0)
        kill_tree()
        os._exit(1)


def main(argv: list[str]) -> int:
    """Run the double. Returns an exit code only for help, usage errors and settings that cannot be."""
    environment = os.environ.get("SGLANG_DOUBLE", "")
    try:
        early = [
            v
            for i, a in enumerate(argv)
            for v in [argv[i + 1] if a == "--double-extra-flags" and i + 1 < len(argv) else ""]
            if v
        ]
        extra = Switches(environment, {"extra_flags": early[-1]} if early else {}).extra_flags
        help_style = [a.partition("=")[2] or "text" for a in argv if a.split("=")[0] == "--double-help-faults"]
        if help_style:
            print(help_faults(help_style[0]))
            return 0
        parser = build_parser(extra)
        args = parser.parse_args(argv)
        given = {
            k[7:]: v
            for k, v in vars(args).items()
            if k.startswith("double_") and v is not None and k != "double_help_faults"
        }
        switches = Switches(environment, given)
    except UsageError as error:
        print(f"launch_server.py: error: {error}", file=sys.stderr)
        return 2
    time.sleep(switches.import_s)
    try:
        settings = resolve(args, switches)
    except ValueError as error:
        print(traceback_text(Crash("import", _LAUNCH, f"ValueError: {error}")), file=sys.stderr)
        return 1
    Launcher(settings, switches).start()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
