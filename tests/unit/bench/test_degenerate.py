"""Loops are found, ordinary repetitive replies are not."""

from __future__ import annotations

import random

import pytest
from specswap_bench.degenerate import assess, repeated_tail

PROSE = (
    "Quicksort picks a pivot and moves smaller values to its left and larger ones to its right. It then sorts both "
    "sides in the same way until a side holds a single value. On average this takes n log n steps, and it needs no "
    "second copy of the data, which is why libraries like it."
)
CODE = "\n".join(
    f'    settings["key_{name}"] = {value}' for value, name in enumerate(["alpha", "beta", "gamma", "delta"])
)
COUNT = ", ".join(str(number) for number in range(1, 120))
TABLE = "\n".join(f"| row {i} | {i * 37 % 101} | {i * 53 % 97} |" for i in range(30))


@pytest.mark.parametrize("text", [PROSE, CODE, COUNT, TABLE, "", "4", "ha " * 30, PROSE + " yes yes yes yes yes"])
def test_ordinary_replies(text: str) -> None:
    found = assess(text)
    assert not found.degenerate, found.reason


@pytest.mark.parametrize(
    "text",
    [
        PROSE + " the end of the list" * 40,
        "I am sorry. " * 60,
        PROSE + "\n" * 400,
        PROSE + (" and then it goes on" * 40)[:-7],
    ],
)
def test_loops(text: str) -> None:
    found = assess(text)
    assert found.degenerate and found.reason


def test_loop_without_exact_period_is_found_by_compression() -> None:
    rng = random.Random(1)
    text = "".join(f"the cat sat on the mat{rng.choice(['.', '!'])} " for _ in range(200))
    assert assess(text).degenerate


def test_repeated_tail() -> None:
    assert repeated_tail("abcxyxyxyxy") == (2, 4)
    assert repeated_tail("abcdef") == (0, 1)
    assert repeated_tail("zzzz") == (1, 4)
