"""SGLang: one served name, so the identity travels as the weight version, and live settings come from /server_info.

Stop: the server drains, then kills its own tree, itself included, so its unit is `failed` (signal) after every stop.
That is its way of ending; the swap forgets it (`reset-failed`) and judges a start by the new invocation alone.
"""

from __future__ import annotations

import re
from typing import Any

from ..plan import Service
from .base import Answer, Ask, Finding, GenerateError, OpenAiEngine, Probe, checked_answer, owned_flags
from .http import HttpError

# Settings that the server resolves from others: what it shows may be a default where the plan says nothing.
_NOTHING = (None, "", "none", "NONE", "null")


class SgLang(OpenAiEngine):
    """Adapter of engine `sglang`."""

    name = "sglang"
    # /health generates a token and looks for it once a second; with a long prefill in front it takes longer.
    health_s = 5.0
    phases = (
        ("imports done", re.compile(r"\bserver_args=ServerArgs\(|\bServerArgs\(")),
        ("distributed init", re.compile(r"Init torch distributed begin")),
        ("loading weights", re.compile(r"Load weight begin")),
        ("weights loaded", re.compile(r"Load weight end")),
        ("KV cache allocated", re.compile(r"KV Cache is allocated|Memory pool end")),
        ("compiling kernels", re.compile(r"\b(JIT|ninja|nvcc)\b.*\b(compil|build)", re.IGNORECASE)),
        ("capturing CUDA graphs", re.compile(r"Capture .*cuda graph.* begin", re.IGNORECASE)),
        ("CUDA graphs captured", re.compile(r"Capture .*cuda graph.* end", re.IGNORECASE)),
        ("HTTP up", re.compile(r"Uvicorn running on")),
        ("ready", re.compile(r"The server is fired up and ready to roll")),
    )

    def static_checks(self, service: Service) -> list[Finding]:
        owned: list[tuple[str, list[str]]] = [
            ("--port", [str(service.slot.port)]),
            ("--host", [service.slot.bind]),
            ("--weight-version", [service.identity]),
            ("--served-model-name", [service.served_model]),
            # A file of further flags, which nothing here looks into.
            ("--config", []),
        ]
        owned += [
            (flag, [service.models[role].path] if role in service.models else [])
            for role, flag in (("target", "--model-path"), ("draft", "--speculative-draft-model-path"))
        ]
        # Its parser takes shortened flags, and --model as another name of --model-path.
        findings = owned_flags(service, owned, abbreviated=True)
        if "target" not in service.models:
            findings.append(Finding("model_role", "no model with role target", "give the variant a model"))
        if ":" in service.served_model:
            message = f"served_model {service.served_model!r}: SGLang takes no colon in it"
            findings.append(Finding("served_model", message, "give the variant another served_model"))
        return findings

    def identity(self, service: Service, timeout_s: float) -> Probe:
        """The weight version is the service's identity, and every planned setting is shown as planned."""
        try:
            reply = self._ask(service, "GET", "/server_info", None, timeout_s)
            if reply.status == 404:
                reply = self._ask(service, "GET", "/get_server_info", None, timeout_s)
            if reply.status != 200:
                return Probe(False, f"GET /server_info: HTTP {reply.status}")
            info = reply.json()
        except HttpError as error:
            return Probe(False, str(error))
        if not isinstance(info, dict):
            return Probe(False, "GET /server_info: not an object", final=True)
        evidence: dict[str, Any] = {
            "identity": info.get("weight_version"),
            "served": [info.get("served_model_name")],
            "version": info.get("version"),
        }
        if info.get("weight_version") != service.identity:
            shown = info.get("weight_version")
            message = f"weight_version is {shown!r}, expected {service.identity!r}: another variant answers"
            return Probe(False, message, evidence, final=True)
        wanted: dict[str, Any] = {"served_model_name": service.served_model, **service.settings}
        for role, key in (("target", "model_path"), ("draft", "speculative_draft_model_path")):
            if role in service.models:
                wanted[key] = service.models[role].path
        evidence["settings"] = {key: info.get(key) for key in wanted}
        for key, value in wanted.items():
            if key not in info:
                return Probe(False, f"the server does not show {key}, the plan says {value!r}", evidence, final=True)
            if not same_setting(info[key], value):
                message = f"the server says {key}={info[key]!r}, the plan says {value!r}"
                return Probe(False, message, evidence, final=True)
        return Probe(True, f"serves as {service.identity}", evidence)

    def completion_names(self, service: Service) -> tuple[str, ...]:
        # The requested name comes back, whatever it was; `completion_problem` looks at what the server knows itself.
        return (service.served_model,)

    def request_name(self, service: Service) -> str:
        return service.served_model

    def completion_problem(self, service: Service, answer: Any) -> str:
        version = (answer.get("metadata") or {}).get("weight_version", service.identity)
        if version == service.identity:
            return ""
        return f"the answer's weight_version is {version!r}, expected {service.identity!r}"

    def generate(self, service: Service, ask: Ask, timeout_s: float) -> Answer:
        """Chat turns as any OpenAI server; texts to continue by /generate, the route that tells about drafts."""
        if not ask.raw:
            return super().generate(service, ask, timeout_s)
        sampling = {"max_new_tokens": ask.max_tokens, "temperature": ask.temperature}
        body = {"text": ask.prompt, "sampling_params": sampling, "stream": False}
        answer, seconds = self.post(service, ask, "/generate", body, timeout_s)
        try:
            meta = answer["meta_info"]
            tokens, finish = meta["completion_tokens"], (meta["finish_reason"] or {}).get("type")
            text, verified, version = answer["text"], meta.get("spec_verify_ct"), meta.get("weight_version")
        except (AttributeError, KeyError, TypeError) as error:
            raise GenerateError(f"{ask.id}: no reply of /generate ({type(error).__name__}: {error})", True) from error
        if version is not None and version != service.identity:
            raise GenerateError(f"{ask.id}: weight_version is {version!r}, expected {service.identity!r}", True)
        # The server's own figure counts the prefill's token too, and so is above 1 when nothing was accepted.
        steps = verified if isinstance(verified, int) and isinstance(tokens, int) else 0
        length = (tokens - 1) / steps if steps > 0 else None
        return checked_answer(ask, text, tokens, finish, seconds, length)


def same_setting(live: Any, planned: Any) -> bool:
    """Equal as SGLang reads them: algorithm names in any case, and nothing under its several names."""
    if planned in _NOTHING or live in _NOTHING:
        return live in _NOTHING and planned in _NOTHING
    if isinstance(live, str) and isinstance(planned, str):
        return live.upper() == planned.upper()
    return bool(live == planned)
