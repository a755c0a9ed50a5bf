"""Faults of what answers on the port."""

from __future__ import annotations

from fault_case import Fault, Told
from fault_host import FaultHost

BACK = {"kind": "answers", "outcome": "rolled_back", "serves": "a"}
SHORT = {"load_s": 2.0, "gate_s": 2.0}


def _stale_server(host: FaultHost) -> None:
    """The old unit was stopped, and its server is there all the same, started by hand."""
    host.run("systemctl", "stop", host.unit("a"))
    host.foreigner("--alias", host.services["a"]["identity"])


def _impostor_at_start(host: FaultHost) -> None:
    """In the moment between stop and start somebody else takes the port and answers in the new variant's name."""
    server = ["/usr/bin/python3", host.services["b"]["launcher"]["path"], "--port", "30001"]
    server += ["--alias", host.services["b"]["identity"]]
    argv = ["systemd-run", "--quiet", "--collect", "--unit=fault-impostor", *server]
    host.hook(at="start_requested", do="exec", argv=argv)


def _other_flags(host: FaultHost) -> None:
    words = host.services["b"]["argv"]
    host.drop_in("b", f"[Service]\nExecStart=\nExecStart={' '.join(words)} --load-s 0\n")


def _other_program(host: FaultHost) -> Told:
    """The unit serves as committed, but its process was replaced by one with other flags: no no-op may be told."""
    unit = host.unit("a")
    host.drop_in("a", f"[Service]\nExecStart=\nExecStart={' '.join(host.services['a']['argv'])} --load-s 0\n")
    host.run("systemctl", "restart", unit)
    host.wait(lambda: host.truth().answers == "a", "a with other flags")
    return host.swap("a")


FAULTS = [
    Fault("stale_server", "answers", "the old unit is stopped, its server still answers on the port", "refused",
          "preflight: port_foreign", None, committed="a", untouched=True, inject=_stale_server, fast=True),
    Fault("impostor", "answers",
          "between stop and start another process takes the port and answers in the new variant's name",
          "rollback_failed", "tier 1", None, committed="a", server=["--bind-delay-s", "3600"],
          inject=_impostor_at_start, says=["another process listens", "fault-impostor"], fast=True),
    Fault("other_model_name", injected="the new server serves under another name", server=["--wrong-model"],
          noticed_by="tier 3", fast=True, **BACK),
    Fault("other_weights", injected="the new server has loaded another model file", server=["--shown-model", "/other"],
          noticed_by="tier 3", says=["/other"], **BACK),
    Fault("other_drafting", injected="the new server drafts, the plan says it does not",
          server=["--speculative", "true"], noticed_by="tier 3", says=["speculative=True"], **BACK),
    Fault("other_flags", injected="a drop-in starts the new server with one more flag", inject=_other_flags,
          noticed_by="tier 3", says=["command line"], **BACK),
    Fault("other_flags_while_serving", "answers",
          "the serving unit was restarted with one more flag by a drop-in; the same variant is asked for",
          "rollback_failed", "tier 3", None, committed="a", act=_other_program, says=["command line"],
          running=["a"]),
    Fault("nonsense_listing", injected="/v1/models answers 200 with a web page", server=["--nonsense", "models"],
          budgets=SHORT, noticed_by="tier 3", **BACK),
    Fault("nonsense_completion", injected="the completion answers 200 with a web page",
          server=["--nonsense", "completion"], budgets=SHORT, noticed_by="tier 4", **BACK),
    Fault("endless_loading", injected="/health says loading for ever", server=["--load-s", "3600"], budgets=SHORT,
          noticed_by="tier 2", says=["load_s"], **BACK),
    Fault("never_listens", injected="the new server runs and never listens", server=["--bind-delay-s", "3600"],
          budgets=SHORT, noticed_by="tier 1", **BACK),
    Fault("slow_health", "answers", "/health takes 1.2 s: slow, but true", "swapped", "gate", "b",
          server=["--slow-health-s", "1.2"]),
    Fault("hung_health", injected="/health never answers", server=["--hang", "health"], budgets={"load_s": 3.0},
          noticed_by="tier 2", **BACK),
    Fault("dripping_health", injected="/health sends one byte per half second", server=["--drip"],
          budgets={"load_s": 3.0}, noticed_by="tier 2", **BACK),
    Fault("sick_in_the_soak", injected="/health turns 503 1 s after readiness, in the soak",
          server=["--sick-after", "1"], budgets={"soak_s": 3.0}, noticed_by="tier 2", says=["soak"], **BACK),
    Fault("generation_hangs", injected="/health is fine, every generation hangs", server=["--hang", "completion"],
          budgets=SHORT, noticed_by="tier 4", fast=True, **BACK),
    Fault("hangs_after_one", injected="the first generation answers, every later one hangs",
          server=["--wedge-after", "1"], budgets=SHORT, noticed_by="tier 5", **BACK),
    Fault("completion_500", injected="generation answers 500 for ever", server=["--completion-status", "500"],
          budgets=SHORT, noticed_by="tier 4", **BACK),
    Fault("completion_404", injected="generation answers 404", server=["--completion-status", "404"],
          noticed_by="tier 4", **BACK),
    Fault("empty_text", injected="the generated text is empty", server=["--empty"], noticed_by="tier 4", **BACK),
    Fault("repeated_text", injected="the generated text is one word over and over",
          server=["--text", "la " * 40], noticed_by="tier 5", **BACK),
    Fault("other_text", injected="greedy text differs from what this model gave here before",
          server=["--text", "Bananas grow on the moon, as everybody knows who has been there."],
          noticed_by="tier 5", **BACK),
    Fault("missing_usage", injected="the answer has no usage", server=["--no-usage"], noticed_by="tier 4", **BACK),
    Fault("missing_finish_reason", injected="the answer has no finish_reason", server=["--no-finish"],
          noticed_by="tier 4", **BACK),
]  # fmt: skip
