"""Results on the controller: complete or not there, and never overwritten."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.specswap.core.plugins.action import comparison


class Report:
    render_markdown = staticmethod(lambda data: "md")
    render_html = staticmethod(lambda data: "html")


DATA: dict[str, Any] = {"session": "s1", "verdict": {"word": "faster"}}


@pytest.fixture(autouse=True)
def _report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(comparison, "report", Report)


def test_writes_all_files_and_points_latest_to_them(tmp_path: Path) -> None:
    directory = comparison.write_results(DATA, tmp_path)
    assert sorted(path.name for path in directory.iterdir()) == ["comparison.json", "report.html", "report.md"]
    assert json.loads((tmp_path / "latest" / "comparison.json").read_text()) == DATA


def test_never_overwrites(tmp_path: Path) -> None:
    first = comparison.write_results(DATA, tmp_path)
    second = comparison.write_results({**DATA, "again": 1}, tmp_path)
    assert first != second
    assert json.loads((first / "comparison.json").read_text()) == DATA
    assert (tmp_path / "latest").resolve() == second


def test_a_failing_report_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def boom(data: Any) -> str:
        raise ValueError("boom")

    monkeypatch.setattr(Report, "render_html", staticmethod(boom))
    with pytest.raises(ValueError, match="boom"):
        comparison.write_results(DATA, tmp_path)
    assert list(tmp_path.iterdir()) == []
