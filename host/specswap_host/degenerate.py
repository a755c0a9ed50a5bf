"""Detector of degenerate output: a model that loops is easy to draft for, so a broken arm would win on speed.

Conservative on purpose: lists, tables and code repeat themselves too, and short replies prove nothing.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

MIN_CHARS = 200  # shorter replies are never called degenerate
MAX_COMPRESSION_RATIO = 8.0  # prose is about 2, code and tables 3 to 5, a loop beyond 10
MIN_TAIL_CHARS = 120
MIN_TAIL_SHARE = 0.35
MIN_TAIL_REPEATS = 4
MAX_UNIT_CHARS = 240
# Short replies (the gate's canary): only one and the same small piece, over nearly the whole of it, is a loop.
SHORT_UNIT_CHARS = 16
SHORT_REPEATS = 8
SHORT_SHARE = 0.9


@dataclass(frozen=True)
class Degeneracy:
    """`compression_ratio`: characters per zlib byte; `tail_repeats` of a unit of `tail_unit_chars` end the text."""

    degenerate: bool
    reason: str
    compression_ratio: float | None
    tail_repeats: int
    tail_unit_chars: int


def repeated_tail(text: str) -> tuple[int, int]:
    """(unit length in characters, repeats) of the periodic tail that covers most of `text`; (0, 1) without one.

    A tail that ends inside a unit counts: cutting a loop at the token limit does not make it whole.
    """
    best_unit, best_length = 0, 0
    end = len(text)
    for unit in range(1, min(MAX_UNIT_CHARS, end // MIN_TAIL_REPEATS) + 1):
        if text[end - unit :] != text[end - 2 * unit : end - unit]:
            continue
        length = unit
        while length < end and text[end - 1 - length] == text[end - 1 - length + unit]:
            length += 1
        if length > best_length:
            best_unit, best_length = unit, length
    return (best_unit, best_length // best_unit) if best_unit else (0, 1)


def assess(text: str) -> Degeneracy:
    """Whether `text` is a loop: its tail repeats over a third of it, or the whole of it hardly holds information."""
    raw = text.encode("utf-8")
    ratio = len(raw) / len(zlib.compress(raw, 9)) if raw else None
    if len(text) < MIN_CHARS:
        return Degeneracy(False, "", ratio, 1, 0)
    unit, repeats = repeated_tail(text)
    tail = unit * repeats
    if repeats >= MIN_TAIL_REPEATS and tail >= MIN_TAIL_CHARS and tail >= MIN_TAIL_SHARE * len(text):
        reason = f"the last {tail} of {len(text)} characters are one text of {unit} characters, {repeats} times"
        return Degeneracy(True, reason, ratio, repeats, unit)
    if ratio is not None and ratio > MAX_COMPRESSION_RATIO:
        reason = f"the text compresses {ratio:.1f} times (more than {MAX_COMPRESSION_RATIO:g})"
        return Degeneracy(True, reason, ratio, repeats, unit)
    return Degeneracy(False, "", ratio, repeats, unit)


def assess_short(text: str) -> Degeneracy:
    """`assess` for replies of a few dozen tokens: nothing but one small piece over and over is a loop."""
    found = assess(text)
    if found.degenerate:
        return found
    unit, repeats = repeated_tail(text)
    if 0 < unit <= SHORT_UNIT_CHARS and repeats >= SHORT_REPEATS and unit * repeats >= SHORT_SHARE * len(text):
        reason = f"{unit * repeats} of {len(text)} characters are {text[-unit:]!r}, {repeats} times"
        return Degeneracy(True, reason, found.compression_ratio, repeats, unit)
    return found
