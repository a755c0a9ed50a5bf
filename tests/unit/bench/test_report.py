"""The three reports: what they must say, and that no text from elsewhere becomes markup."""

from __future__ import annotations

import html.parser
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from specswap_bench.cli import main
from specswap_bench.figures import arm_rows, repeat_lines
from specswap_bench.report import render_html, render_markdown, render_table
from specswap_bench.suites import Prompt, Suite
from test_comparison import PRINTS, compare

from tests.doubles.sse_double import Chunk, Script, SseDouble

EVIL = '<script>alert("1")</script>|`x`'


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and collects tags and links."""

    VOID = ("meta", "line", "circle", "rect")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def evil() -> dict[str, Any]:
    prints = {**PRINTS, "cand": {**PRINTS["cand"], "settings": {EVIL: EVIL}}}
    failure = {"index": 9, "arm": "cand", "pair": 1, "cause": EVIL + "\x1b[31m", "advice": ""}
    return compare(
        fingerprints=prints, host=EVIL, session=EVIL, suite=EVIL, failures=[failure], controller={"command": EVIL}
    )


def test_html_is_one_sound_page_and_escapes_everything() -> None:
    text = render_html(evil())
    page = Page()
    page.feed(text)
    assert page.open == [] and page.links == []
    assert "script" not in page.tags and page.tags.count("svg") == 4
    assert "&lt;script&gt;" in text and "http" not in text.replace("http-equiv", "")
    assert "prefers-color-scheme: dark" in text and "width=device-width" in text


def test_html_starts_with_the_verdict() -> None:
    text = render_html(compare())
    assert 'class="word">faster<' in text and "+25.4 %" in text
    assert text.index('class="word"') < text.index("<h2>Arms")
    assert "ansible-playbook compare.yml" in text


def test_without_a_verdict_the_big_text_is_the_word() -> None:
    result = compare()
    result["verdict"]["word"] = "not enough rounds"
    assert '<p class="big">not enough rounds <span class="soft aside">+25.4 %</span></p>' in render_html(result)


def test_the_repeat_line_finds_the_host_and_the_suite_again() -> None:
    start = "ansible-playbook -i inventory -i 'my hosts.yml' -l box1 compare.yml"
    command = f"{start} -e arms=base,cand -e slot=smoke -e suite=own/code.jsonl -e pairs=1 -e quick=true"
    result = compare(controller={"command": command})
    line, comment = repeat_lines(result)
    assert line.startswith(f"{start} -e arms=base,cand -e slot={result['slot']} -e suite=own/code.jsonl -e pairs=")
    assert "quick" not in line and comment == f"# this comparison was: {command}"
    result["controller"] = {"command": "specswap-host compare base cand"}
    assert repeat_lines(result)[0].startswith("ansible-playbook compare.yml -e arms=base,cand ")


def test_drafts_of_some_prompts_say_of_how_many() -> None:
    result = compare()
    for index, row in enumerate(result["prompts"]):
        row["candidate_draft_n"] = 5 if index == 0 else 0
    notes = [row.note for row in arm_rows(result) if row.name == "drafts accepted, %"]
    assert f"cand: drafted on 1 of {len(result['prompts'])} prompts" in notes[0]
    result["arms"]["cand"].update(draft_acceptance=0.9, draft_acceptance_reason=None)
    result["arms"]["base"].update(draft_acceptance=None, draft_acceptance_reason="the server counted no drafts")
    assert "base: the server counted no drafts; cand: drafted on 1 of" in render_html(result)


def test_markdown() -> None:
    text = render_markdown(evil())
    assert "<script>" not in text.split("```")[0] and "\\<script\\>" in text
    plain = render_markdown(compare())
    assert plain.startswith("# cand against base: faster\n")
    assert "| end to end, tok/s | 70.7 | 88.7 | +25.4 % |" in plain
    for line in plain.splitlines():
        if line.startswith("| a |"):
            assert line.count("|") == 8


def test_table_fits_a_terminal_and_steers_nothing() -> None:
    text = render_table(evil())
    assert "\x1b" not in text and text.startswith("FASTER  cand against base")
    assert max(len(line) for line in text.splitlines()) <= 100
    assert "0.00" not in text


def test_no_text_of_an_old_result_steers_a_terminal() -> None:
    """Results may be older than the refusal of such ids: every report cleans what it prints."""
    result = evil()
    result["controller"] = {"command": "x\x1b[31m\n```"}
    result["prompts"][0].update(key="a\x1b[31m", category="\x07")
    for render in (render_markdown, render_table):
        text = render(result)
        assert not [sign for sign in text if not sign.isprintable() and sign != "\n"]
    assert render_markdown(result).count("\n```") == 2


def test_what_was_not_measured_is_a_dash() -> None:
    result = compare(lambda blocks: blocks.__delitem__(slice(1, None)))
    for render in (render_html, render_markdown, render_table):
        text = render(result)
        assert "–" in text and "None" not in text and "nan" not in text


def test_reports_need_no_http_library() -> None:
    program = (
        "import sys; sys.modules['requests'] = None; sys.modules['urllib3'] = None\n"
        "import specswap_bench.report, specswap_bench.suites, specswap_bench.comparison\n"
        "assert 'specswap_host' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_report_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "comparison.json"
    source.write_text(json.dumps(compare()))
    assert main(["report", str(source), "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out == render_table(compare())
    assert (tmp_path / "out/report.html").read_text().startswith("<!doctype html>")
    assert (tmp_path / "out/report.md").exists()
    source.write_text('{"schema": 9}')
    assert main(["report", str(source)]) == 2
    assert "schema 9" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "nothing.json")]) == 2


def test_block_command(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    suite = tmp_path / "mine.jsonl"
    suite.write_text('{"id": "a", "turns": ["hello"]}\n')
    script = Script([Chunk(f"word{i} ", after_s=0.005) for i in range(6)])
    with SseDouble(script) as server:
        words = ["block", "--url", server.url, "--model", "m", "--suite", str(suite), "--warmup", "1"]
        assert main([*words, "--json"]) == 0
        body = json.loads(capsys.readouterr().out)
        assert body["summary"]["completion_tokens"] == 6
        assert main(words) == 0
        assert "tok/s" in capsys.readouterr().out
        server.default = Script(script.chunks, status=500)
        assert main(words) == 0
        assert "1 requests, 1 failed" in capsys.readouterr().out, "a failed request is part of the block"
        order = {"url": server.url, "model": "m", "suite": Suite("s", (Prompt("a", "", ("x",)),), ()).to_dict()}
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps({**order, "request": {}})))
        assert main(["block", "--stdin"]) == 0
        assert json.loads(capsys.readouterr().out)["summary"]["failed"] == 1
        monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(order)))
        assert main(["block", "--stdin"]) == 2
        assert "lacks 'request'" in capsys.readouterr().err
    assert main(words) == 1
    assert "is the server up" in capsys.readouterr().err
    assert main(["block", "--url", "x", "--model", "m", "--suite", "nosuch"]) == 2
    assert main(["block", "--model", "m"]) == 2
    assert "give --url" in capsys.readouterr().err


def test_suites_command_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suites"]) == 0
    assert "quicksort" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0 and "run-session" in capsys.readouterr().out


def test_session_command_names_a_missing_plan(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["run-session", "--plan", str(tmp_path / "plan.json")]) == 2
    assert "plan.json" in capsys.readouterr().err
