"""One block: warm-up, flush, all prompts once in order, and what the server says of itself."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import requests

from . import __version__
from .client import ChatClient, ClientError, RequestSettings
from .degenerate import assess
from .record import RequestRecord
from .suites import Prompt, Suite
from .summary import summarize

WARMUP_STEADY = 3  # so many requests in a row ...
WARMUP_SPREAD = 0.05  # ... within this relative range end the warm-up
CLIENT_BOUND_SHARE = 0.6  # of one core: above it the client is measured, not the server

Progress = Callable[[str], None]


class BlockError(Exception):
    """The block could not be measured; the text says why and what to do."""


@dataclass
class Block:
    """Records and conditions of one block. `client_cpu_share`: CPU seconds of the client per wall second."""

    model: str
    engine: str
    base_url: str
    suite: str
    suite_sha256: str
    started_at: float  # wall clock, seconds since the epoch
    request: dict[str, Any]
    seconds: float = 0.0
    measured_s: float = 0.0
    warmup: list[RequestRecord] = field(default_factory=list)
    warmup_stop: str = ""
    requests: list[RequestRecord] = field(default_factory=list)
    cache_protocol: str = ""
    client_cpu_s: float = 0.0
    client_cpu_share: float = 0.0
    load_average: list[float] = field(default_factory=list)  # 1 minute, before and after
    server_info: dict[str, Any] = field(default_factory=dict)
    gpus: list[dict[str, str]] = field(default_factory=list)

    @property
    def client_bound(self) -> bool:
        """True when the client needed so much CPU that its own limits were measured."""
        return self.client_cpu_share > CLIENT_BOUND_SHARE

    def summary(self) -> dict[str, Any]:
        """Figures of the block's successful requests, see `summarize`."""
        return summarize([record.to_dict() for record in self.requests])

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "model": self.model,
            "engine": self.engine,
            "base_url": self.base_url,
            "suite": self.suite,
            "suite_sha256": self.suite_sha256,
            "started_at": round(self.started_at, 3),
            "seconds": round(self.seconds, 3),
            "measured_s": round(self.measured_s, 3),
            "request": self.request,
            "warmup": [record.to_dict() for record in self.warmup],
            "warmup_stop": self.warmup_stop,
            "requests": [record.to_dict() for record in self.requests],
            "summary": self.summary(),
            "cache_protocol": self.cache_protocol,
            "client_cpu_s": round(self.client_cpu_s, 4),
            "client_cpu_share": round(self.client_cpu_share, 4),
            "client_bound": self.client_bound,
            "client_uid": os.geteuid(),
            "load_average": self.load_average,
            "server_info": self.server_info,
            "gpus": self.gpus,
            "machine": machine(),
            "bench_version": __version__,
        }


def machine() -> dict[str, Any]:
    """The machine the client runs on (by default the server's): kernel, CPU, cores, memory in MiB, library versions."""
    cpu = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                cpu = line.split(":", 1)[1].strip()
                break
        memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // (1 << 20)
    except (OSError, ValueError):
        memory_mib = 0
    return {
        "kernel": platform.release(),
        "cpu": cpu,
        "cores": os.cpu_count() or 0,
        "memory_mib": memory_mib or None,
        "python": platform.python_version(),
        "requests": requests.__version__,
    }


_GPU_FIELDS = (
    "index",
    "name",
    "driver_version",
    "clocks.sm",
    "temperature.gpu",
    "power.draw",
    "clocks_throttle_reasons.active",
)


def gpus() -> list[dict[str, str]]:
    """GPUs as nvidia-smi shows them now; empty without that program."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    try:
        reply = subprocess.run(
            [program, f"--query-gpu={','.join(_GPU_FIELDS)}", "--format=csv,noheader"],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=15,
            check=True,
            text=True,
        )
    except (OSError, subprocess.SubprocessError):
        return []
    return [
        dict(zip(_GPU_FIELDS, (cell.strip() for cell in line.split(",")))) for line in reply.stdout.splitlines() if line
    ]


def detect_engine(client: ChatClient) -> tuple[str, dict[str, Any]]:
    """(engine, what a result may tell of its account of itself). Engines: `llamacpp`, `sglang`, or `unknown`.

    Errors: ClientError.
    """
    info = client.get_json("/server_info")
    if isinstance(info, dict):
        return "sglang", _account(info, _SGLANG_KEYS)
    props = client.get_json("/props")
    if isinstance(props, dict):
        return "llamacpp", _account(props, _LLAMACPP_KEYS)
    return "unknown", {}


# What a server may say of itself in a result. A list of what is left out would not do: SGLang's /server_info holds
# api_key and admin_api_key beside hundreds of settings, and the next release may add another secret.
_SGLANG_KEYS = (
    "attention_backend",
    "chunked_prefill_size",
    "context_length",
    "cuda_graph_max_bs",
    "disable_cuda_graph",
    "disable_overlap_schedule",
    "disable_radix_cache",
    "dp_size",
    "draft_attention_backend",
    "dtype",
    "enable_deterministic_inference",
    "enable_torch_compile",
    "grammar_backend",
    "kv_cache_dtype",
    "max_running_requests",
    "max_total_num_tokens",
    "max_total_tokens",
    "mem_fraction_static",
    "model_path",
    "moe_runner_backend",
    "page_size",
    "pp_size",
    "quantization",
    "revision",
    "sampling_backend",
    "schedule_policy",
    "served_model_name",
    "stream_interval",
    "tp_size",
    "version",
    "weight_version",
)
_LLAMACPP_KEYS = (
    "bos_token",
    "build_info",
    "chat_template",
    "default_generation_settings",
    "eos_token",
    "modalities",
    "model_alias",
    "model_ftype",
    "model_path",
    "total_slots",
)


def _account(info: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    # Builds with methods of their own have settings of their own: all that decides how drafts are made counts.
    told = sorted(key for key in info if key in keys or key.startswith("speculative_"))
    return {key: _trimmed(info[key]) for key in told}


def _trimmed(value: Any, limit: int = 400) -> Any:
    """The same JSON with long texts (chat templates) cut."""
    if isinstance(value, dict):
        return {str(key): _trimmed(item, limit) for key, item in value.items()}
    if isinstance(value, list):
        return [_trimmed(item, limit) for item in value[:100]]
    if isinstance(value, str) and len(value) > limit:
        return value[:limit] + f"... ({len(value)} characters)"
    return value


def _llamacpp_cache(settings: RequestSettings) -> tuple[RequestSettings, str]:
    return replace(settings, extra={**settings.extra, "cache_prompt": False}), "cache_prompt=false in every request"


def _sglang_flush(client: ChatClient, budget_s: float = 20.0) -> str:
    """Flush the prefix cache; the server refuses while requests run, so ask until the budget ends."""
    deadline = time.monotonic() + budget_s
    while True:
        status, text = client.post_status("/flush_cache")
        if status == 200:
            return "flush_cache after the warm-up"
        if status not in (400, 409, 423, 429, 503) or time.monotonic() > deadline:
            raise BlockError(f"POST /flush_cache answered {status}: {text}; the prefix cache would falsify the block")
        time.sleep(0.25)


def _conversation(
    client: ChatClient, prompt: Prompt, settings: RequestSettings, *, check: bool = True
) -> list[RequestRecord]:
    """All turns of one prompt, each with the replies before it as history; nothing is sent after a failed turn."""
    messages: list[dict[str, str]] = []
    records: list[RequestRecord] = []
    failed = False
    for number, turn in enumerate(prompt.turns, 1):
        if failed:
            record = RequestRecord(prompt=prompt.id, category=prompt.category, turn=number, error="not_sent")
            record.error_detail = "an earlier turn failed"
        else:
            messages.append({"role": "user", "content": turn})
            record = client.chat(
                messages,
                prompt=prompt.id,
                category=prompt.category,
                turn=number,
                max_tokens=min(prompt.max_tokens, settings.max_tokens),
            )
            messages.append({"role": "assistant", "content": record.text})
            failed = not record.ok
        if check and record.ok:
            found = assess(record.output)
            record.degenerate, record.degenerate_reason = found.degenerate, found.reason
        records.append(record)
    return records


def _warm_up(client: ChatClient, block: Block, suite: Suite, settings: RequestSettings, cap: int) -> None:
    """Warm-up prompts in turn until three in a row are equally fast, or the cap."""
    speeds: list[float] = []
    block.warmup_stop = "cap" if cap and suite.warmup else "none"
    for index in range(cap if suite.warmup else 0):
        records = _conversation(client, suite.warmup[index % len(suite.warmup)], settings, check=False)
        block.warmup.extend(records)
        speeds.extend(s for s in (record.metrics().decode_tok_per_s for record in records) if s is not None)
        latest = speeds[-WARMUP_STEADY:]
        if len(latest) == WARMUP_STEADY and max(latest) - min(latest) <= WARMUP_SPREAD * min(latest):
            block.warmup_stop = "steady"
            return


def run_block(
    base_url: str,
    model: str,
    suite: Suite,
    request: RequestSettings,
    *,
    engine: str | None = None,
    warmup_cap: int = 6,
    progress: Progress | None = None,
) -> Block:
    """Measure one server once: warm-up, flush, all prompts in order, one at a time.

    `engine` None: ask the server. Errors: BlockError when the server cannot be reached or its cache not be flushed;
    failed requests are no error, they stand in the block.
    """
    say = progress or (lambda _line: None)
    began = time.monotonic()
    try:
        with ChatClient(base_url, model, request) as client:
            found, info = detect_engine(client)
            block = Block(model, engine or found, base_url, suite.name, suite.sha256, time.time(), request.to_dict())
            block.server_info = info
            settings = request
            if block.engine == "llamacpp":
                settings, block.cache_protocol = _llamacpp_cache(request)
                client.settings = settings
                block.request = settings.to_dict()
            block.load_average = [round(os.getloadavg()[0], 2)]
            _warm_up(client, block, suite, settings, warmup_cap)
            say(f"warm-up: {len(block.warmup)} requests, stop: {block.warmup_stop}")
            if block.engine == "sglang":
                block.cache_protocol = _sglang_flush(client)
            elif block.engine != "llamacpp":
                block.cache_protocol = "none: the engine is unknown"
            cpu, wall = time.process_time(), time.monotonic()
            for prompt in suite.prompts:
                for record in _conversation(client, prompt, settings):
                    block.requests.append(record)
                    say(_line(record))
            block.client_cpu_s = time.process_time() - cpu
            block.measured_s = time.monotonic() - wall
            block.client_cpu_share = block.client_cpu_s / block.measured_s if block.measured_s > 0 else 0.0
            block.load_average.append(round(os.getloadavg()[0], 2))
            block.gpus = gpus()
    except ClientError as error:
        raise BlockError(f"{error}; is the server up?") from error
    block.seconds = time.monotonic() - began
    return block


def _line(record: RequestRecord) -> str:
    figures = record.metrics()
    if not record.ok:
        return f"{record.key}: failed: {record.error}: {record.error_detail}"
    speed = "-" if figures.e2e_tok_per_s is None else f"{figures.e2e_tok_per_s:.1f}"
    first = "-" if figures.ttft_s is None else f"{figures.ttft_s:.3f}"
    return f"{record.key}: {record.completion_tokens} tokens, e2e {speed} tok/s, TTFT {first} s, {record.finish_reason}"
