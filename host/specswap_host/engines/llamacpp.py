"""llama.cpp's server, run in-process by our launcher."""

from __future__ import annotations

import re
from typing import Any

from ..plan import Service
from .base import Finding, OpenAiEngine, Probe
from .http import HttpError


def flag_values(argv: tuple[str, ...], flag: str) -> list[str]:
    """Values of a flag in both spellings, `--flag value` and `--flag=value`."""
    values = [item.split("=", 1)[1] for item in argv if item.startswith(flag + "=")]
    return values + [argv[i + 1] for i, item in enumerate(argv[:-1]) if item == flag]


class LlamaCpp(OpenAiEngine):
    """Adapter of engine `llamacpp`."""

    name = "llamacpp"
    phases = (
        ("loading model", re.compile(r"specswap: loading model|load_model: loading model")),
        ("warming up", re.compile(r"warming up the model")),
        ("model loaded", re.compile(r"main: model loaded|load_model: initializing slots")),
        ("ready", re.compile(r"specswap: READY")),
    )

    def static_checks(self, service: Service) -> list[Finding]:
        findings = []
        wanted = (("--port", str(service.slot.port)), ("--host", service.slot.bind), ("--alias", service.identity))
        for flag, value in wanted:
            values = flag_values(service.argv, flag)
            if value not in values:
                findings.append(
                    Finding(
                        "argv_mismatch",
                        f"argv has {flag} {values or 'nowhere'}, the slot needs {value}",
                        f"remove {flag} from the variant's raw_args; it is set from the slot",
                    )
                )
        if "target" not in service.models:
            findings.append(Finding("model_role", "no model with role target", "give the variant a model"))
        return findings

    def live_settings(self, service: Service, timeout_s: float, evidence: dict[str, Any]) -> Probe:
        try:
            reply = self._ask(service, "GET", "/props", None, timeout_s)
            props = reply.json() if reply.status == 200 else {}
        except HttpError as error:
            return Probe(False, str(error), evidence)
        live = props.get("model_path") if isinstance(props, dict) else None
        wanted = service.models["target"].path if "target" in service.models else None
        if live is not None and wanted is not None:
            evidence["model_path"] = live
            if live != wanted:
                return Probe(False, f"the server has loaded {live}, the plan says {wanted}", evidence, final=True)
        return Probe(True, f"serves as {service.identity}", evidence)
