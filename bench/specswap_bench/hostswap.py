"""The real `Swapper`: the host's own swap through its gate. The job that runs the session holds the slot's lock."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from specswap_host.plan import Plan, Service

from .session import EventLog, SwapOutcome


class HostSwapper:
    """Swaps inside a running job, with the plan, journal and context that `specswap_host.job.open_job` gives."""

    def __init__(self, plan: Plan, journal: Any, context: Any) -> None:
        self.plan = plan
        self.journal = journal
        self.context = context

    @classmethod
    def open(cls, slot: str, job: str) -> tuple[HostSwapper, EventLog]:
        """Join job `job` of `slot`; SIGTERM and SIGINT then end it in order. Errors: those of `open_job`."""
        from specswap_host.job import open_job

        opened = open_job(slot, job, catch_signals=True)
        return cls(opened.plan, opened.journal, opened.ctx), opened.journal

    def active(self) -> Mapping[str, Any] | None:
        """The committed service."""
        from specswap_host import state

        found = state.load(self.context.paths.state(self.plan.slot), self.plan.slot).active
        return None if found is None else found.service.to_dict()

    def swap(self, service: Mapping[str, Any], fresh: bool) -> SwapOutcome:
        """Swap to `service`; when it serves already and must be `fresh`, it is started anew."""
        from specswap_host.swap import run_swap

        result = run_swap(self.plan.swap_to(Service.from_dict(service)), self.journal, self.context, fresh)
        return SwapOutcome(
            outcome=result.outcome,
            seconds=result.seconds,
            downtime_s=result.downtime_s,
            cause=_text(result.cause),
            advice=_text(result.advice),
        )

    def incarnation(self, service: Mapping[str, Any]) -> str:
        """systemd's invocation id of the unit."""
        return str(self.context.systemd.show(service["unit"])[0].invocation_id)

    def drop_ins(self, service: Mapping[str, Any]) -> dict[str, str]:
        """Local changes of the unit by drop-ins: file name -> hash."""
        from specswap_host.systemd import drop_in_hashes

        return drop_in_hashes(self.context.systemd.show(service["unit"])[0])

    def cancelled(self) -> bool:
        """True once the job was asked to end."""
        return bool(self.context.cancel.is_set())

    def begin_restore(self) -> None:
        """Forget the request to end: a swap would obey it and leave the slot to an arm."""
        self.context.cancel.clear()


def _text(value: object) -> str:
    return "" if value is None else str(value)
