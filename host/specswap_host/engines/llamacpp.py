"""llama.cpp's server, run in-process by our launcher."""

from __future__ import annotations

import re
from typing import Any

from ..plan import Service
from .base import Finding, OpenAiEngine, Probe, flag_values, owned_flags
from .http import HttpError


class LlamaCpp(OpenAiEngine):
    """Adapter of engine `llamacpp`."""

    name = "llamacpp"
    phases = (
        ("loading model", re.compile(r"specswap: loading model|load_model: loading model")),
        ("preparing slots", re.compile(r"load_model: initializing, n_slots")),
        ("model loaded", re.compile(r"init: model loaded")),
        ("ready", re.compile(r"specswap: READY")),
    )

    def static_checks(self, service: Service) -> list[Finding]:
        target = service.models.get("target")
        owned: list[tuple[str, list[str]]] = [
            ("--port", [str(service.slot.port)]),
            ("--host", [service.slot.bind]),
            ("--alias", [service.served_model, service.identity]),
            ("--model", [target.path] if target else []),
        ]
        # How long the server drains may follow the budget later; that it is said once must hold now.
        drain = flag_values(service.argv, "--drain-s")
        owned += [("--drain-s", drain[:1])]
        findings = owned_flags(service, owned)
        if "target" not in service.models:
            findings.append(Finding("model_role", "no model with role target", "give the variant a model"))
        return findings

    def completion_names(self, service: Service) -> tuple[str, ...]:
        # The server answers with its first alias by sort order, whichever alias was asked for.
        return (service.identity, service.served_model)

    def live_settings(self, service: Service, timeout_s: float, evidence: dict[str, Any]) -> Probe:
        """The loaded model file (/props) and whether the slots draft (/slots) equal the plan.

        The server does not tell which kind of drafting it uses: the equality of argv covers that.
        """
        try:
            props = self._json(service, "/props", timeout_s)
            slots = self._json(service, "/slots", timeout_s)
        except HttpError as error:
            return Probe(False, str(error), evidence)
        live = props.get("model_path") if isinstance(props, dict) else None
        if live is not None and "target" in service.models:
            evidence["model_path"] = live
            wanted = service.models["target"].path
            if live != wanted:
                return Probe(False, f"the server has loaded {live}, the plan says {wanted}", evidence, final=True)
        kind = service.settings.get("speculative_type")
        if isinstance(slots, list) and slots and isinstance(slots[0], dict) and kind is not None:
            drafts = slots[0].get("speculative")
            if isinstance(drafts, bool):
                evidence["speculative"] = drafts
                if drafts != (kind != "none"):
                    message = f"the server says speculative={drafts}, the plan says {kind}"
                    return Probe(False, message, evidence, final=True)
        return Probe(True, f"serves as {service.identity}", evidence)

    def accept_length(self, answer: Any, tokens: Any) -> float | None:
        """Tokens per step, from the server's own count of accepted drafts: an accepted draft saves one step."""
        timings = answer.get("timings")
        if not isinstance(timings, dict) or not isinstance(tokens, int):
            return None
        accepted = timings.get("draft_n_accepted", 0)
        if not isinstance(accepted, int) or not 0 <= accepted < tokens - 1:
            return None
        return (tokens - 1) / (tokens - 1 - accepted)

    def _json(self, service: Service, path: str, timeout_s: float) -> Any:
        """The reply as JSON, None where this build does not offer `path`."""
        reply = self._ask(service, "GET", path, None, timeout_s)
        return reply.json() if reply.status == 200 else None
