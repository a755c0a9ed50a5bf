"""The table of faults: rows, the page made from them, and which faults a test run injects."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from specswap.errors import ConsoleError
from specswap.faults import Row, publish, read_rows, render, write_rows
from specswap.paths import find_paths
from specswap.testing import fault_stages

GOOD = Row("crash", "process", "it dies | at once", "crash", 1.26, "rolled_back", "rolled_back", "a serves", True)
BAD = replace(GOOD, id="lie", kind="host", outcome="swapped", ok=False)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    write_rows(tmp_path / "r" / "faults.json", [GOOD, BAD])
    assert read_rows(tmp_path / "r" / "faults.json") == [GOOD, BAD]


def test_page_tells_good_from_bad() -> None:
    page = render([GOOD, BAD])
    assert "**1 of 2 faults ended as they must**" in page
    assert "| crash | it dies \\| at once | crash | 1.3 | rolled_back | a serves | yes |" in page
    assert "| swapped, expected rolled_back |" in page and "| NO |" in page
    assert "The server process: 1 of 1" in page and "The host around it: 0 of 1" in page


def test_publish_writes_the_page_from_the_rows(tmp_path: Path) -> None:
    write_rows(tmp_path / "faults.json", [GOOD])
    assert publish(tmp_path / "faults.json", tmp_path / "docs" / "faults.md").startswith("1 of 1 faults")
    assert (tmp_path / "docs" / "faults.md").read_text() == render([GOOD])


@pytest.mark.parametrize("text", [None, "{", '[{"id": 1}]'])
def test_no_table_is_said_with_the_way_out(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "faults.json").write_text(text)
    with pytest.raises(ConsoleError) as caught:
        read_rows(tmp_path / "faults.json")
    assert "test faults" in caught.value.way_out


def test_only_a_whole_run_makes_the_table() -> None:
    paths = find_paths()
    whole = fault_stages(paths, True, "")
    assert [stage.name for stage in whole] == ["faults", "table of faults"]
    assert "fast" not in whole[0].argv and (whole[0].env or {})["SPECSWAP_FAULT_ROWS"].endswith("results/faults.json")
    (some,) = fault_stages(paths, False, "")
    assert "fast" in some.argv and "results" not in (some.env or {})["SPECSWAP_FAULT_ROWS"]
    (chosen,) = fault_stages(paths, True, "crash")
    assert "fast" not in chosen.argv and "results" not in (chosen.env or {})["SPECSWAP_FAULT_ROWS"]
