"""Suites are read strictly; errors name file and line."""

from __future__ import annotations

from pathlib import Path

import pytest
from specswap_bench.suites import Prompt, Suite, SuiteError, load_suite, suite_names

GOOD = '{"id": "a", "category": "x", "turns": ["hello"], "max_tokens": 8}\n'


def test_story() -> None:
    suite = load_suite("story")
    assert [prompt.id for prompt in suite.prompts] == ["fibonacci", "quicksort", "arithmetic", "edit"]
    assert all(prompt.max_tokens == 256 for prompt in suite.prompts)
    assert suite.warmup and "story" in suite_names()
    assert Suite.from_dict(suite.to_dict()) == suite
    assert Suite.from_dict({"name": "story", "prompts": [], "warmup": []}) == suite


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{half", "not valid JSON"),
        ("[]", "must be an object"),
        ('{"id": "a"}', '"turns"'),
        ('{"id": "a", "turns": []}', '"turns"'),
        ('{"id": "", "turns": ["x"]}', '"id"'),
        ('{"id": "a\\u001b[31m", "turns": ["x"]}', '"id" must not hold control characters'),
        ('{"id": "a", "category": "\\u0007", "turns": ["x"]}', '"category" must be a text without control'),
        ('{"id": "a", "turns": ["x"], "max_tokens": 0}', '"max_tokens"'),
        ('{"id": "a", "turns": ["x"], "maxtokens": 1}', "maxtokens"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, line: str, words: str) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(GOOD + "\n" + line + "\n")
    with pytest.raises(SuiteError) as error:
        load_suite(str(path))
    assert f"{path}:3:" in str(error.value) and words in str(error.value)


def test_own_suite_and_its_warmup(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(GOOD)
    assert load_suite(str(path)).warmup == load_suite("story").warmup
    (tmp_path / "mine.warmup.jsonl").write_text(GOOD)
    with pytest.raises(SuiteError, match="also measured"):
        load_suite(str(path))


def test_a_name_that_would_steer_the_terminal() -> None:
    with pytest.raises(SuiteError, match="control characters"):
        Suite("a\x1b[31m", (Prompt("a", "", ("x",)),), ())


def test_unknown_suite_and_double_ids() -> None:
    with pytest.raises(SuiteError, match="story"):
        load_suite("nosuch")
    prompt = Prompt("a", "", ("x",))
    with pytest.raises(SuiteError, match="'a'"):
        Suite("s", (prompt, prompt), ())


def test_digest_follows_the_text() -> None:
    one, two = (Suite("s", (Prompt("a", "", (text,)),), ()) for text in ("x", "y"))
    assert one.sha256 != two.sha256 and len(one.sha256) == 64
