"""Every fault of the catalogues on a real host: injected, told, and compared with the truth there."""

from __future__ import annotations

import time

import pytest
from catalogue import FAULTS
from fault_case import Fault, judge, noticed_by
from fault_host import FaultHost

from specswap.faults import Row


def marked(fault: Fault) -> object:
    return pytest.param(fault, id=f"{fault.kind}-{fault.id}", marks=[pytest.mark.fast] if fault.fast else [])


@pytest.mark.parametrize("fault", [marked(fault) for fault in FAULTS])
def test_fault(fault: Fault, host: FaultHost, rows: list[Row]) -> None:
    host.prepare(fault.server, fault.server_a, fault.budgets, fault.start)
    fault.inject(host)
    before = host.truth()
    began = time.monotonic()
    said = fault.act(host)
    seconds = time.monotonic() - began
    after = host.truth()
    wrong = judge(fault, said, before, after, host)
    rows.append(
        Row(
            id=fault.id,
            kind=fault.kind,
            injected=fault.injected,
            noticed_by=noticed_by(said.events, said.text),
            seconds=round(seconds, 2),
            outcome=said.outcome,
            expected_outcome=fault.outcome,
            host_truth=after.words() + ("; nothing was touched" if fault.untouched and not wrong else ""),
            ok=not wrong,
        )
    )
    assert not wrong, "\n".join([*wrong, "", said.text[-3000:]])
