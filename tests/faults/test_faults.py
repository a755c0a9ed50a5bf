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
    began = time.monotonic()
    try:
        row, wrong = measured(fault, host)
    except Exception as error:
        # The row must be there all the same: a table without it would be a lie.
        words = " ".join(str(error).split())[:300]
        took = round(time.monotonic() - began, 2)
        row = Row(fault.id, fault.kind, fault.injected, "-", took, "not judged", fault.outcome, words, False)
        rows.append(row)
        raise
    rows.append(row)
    assert not wrong, "\n".join(wrong)


def measured(fault: Fault, host: FaultHost) -> tuple[Row, list[str]]:
    """The row of one fault, and everything that is wrong with it."""
    host.prepare(fault.server, fault.server_a, fault.budgets, fault.start)
    fault.inject(host)
    before = host.truth()
    began = time.monotonic()
    said = fault.act(host)
    seconds = round(time.monotonic() - began, 2)
    after = host.truth()
    wrong = judge(fault, said, before, after, host)
    truth = after.words() + ("; nothing was touched" if fault.untouched and not wrong else "")
    noticed = noticed_by(said.events, said.text)
    row = Row(fault.id, fault.kind, fault.injected, noticed, seconds, said.outcome, fault.outcome, truth, ok=not wrong)
    return row, [*wrong, "", said.text[-3000:]] if wrong else []
