"""The comparison as one HTML page: no script, no foreign resource, light and dark, readable on a phone."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

from .figures import (
    arm_rows,
    change,
    fingerprint_rows,
    interval_text,
    match_lines,
    moment,
    names,
    notes,
    number,
    repeat_lines,
)

_TICKS = (0.2, 0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0)

_TONES = {
    "faster": "good",
    "slower": "bad",
    "no difference": "calm",
    "inconclusive": "wait",
    "not enough rounds": "wait",
    "invalid": "bad",
    "not comparable": "bad",
}

# No verdict, or none that a figure may stand for.
_UNDECIDED = ("not enough rounds", "inconclusive", "invalid", "not comparable")

_STYLE = """
:root { color-scheme: light dark; --bg: #f6f7f9; --card: #fff; --ink: #1b1f24; --soft: #57606a; --line: #d8dee4;
  --good: #116329; --good-bg: #dafbe1; --bad: #a40e26; --bad-bg: #ffebe9; --wait: #7d4e00; --wait-bg: #fff8c5;
  --calm: #0a5696; --calm-bg: #ddf4ff; --dot: #0969da; --mark: #fff3cd; }
@media (prefers-color-scheme: dark) { :root { --bg: #0d1117; --card: #161b22; --ink: #e6edf3; --soft: #9aa4af;
  --line: #30363d; --good: #56d364; --good-bg: #12261e; --bad: #ff7b72; --bad-bg: #2d1517; --wait: #e3b341;
  --wait-bg: #272115; --calm: #79c0ff; --calm-bg: #121d2f; --dot: #58a6ff; --mark: #3a2f10; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 0 0 .75rem; }
section { background: var(--card); border: 1px solid var(--line); border-radius: .6rem; padding: 1rem;
  margin: 0 0 1rem; }
.verdict { border-left: .4rem solid var(--tone); }
.word { display: inline-block; padding: .1rem .7rem; border-radius: 1rem; font-weight: 700; color: var(--tone);
  background: var(--tone-bg); }
.good { --tone: var(--good); --tone-bg: var(--good-bg); } .bad { --tone: var(--bad); --tone-bg: var(--bad-bg); }
.wait { --tone: var(--wait); --tone-bg: var(--wait-bg); } .calm { --tone: var(--calm); --tone-bg: var(--calm-bg); }
.big { font-size: 2.4rem; font-weight: 700; margin: .4rem 0 0; font-variant-numeric: tabular-nums; }
.aside { font-size: 1rem; font-weight: 400; }
.soft { color: var(--soft); } p { margin: .3rem 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .35rem .5rem; border-bottom: 1px solid var(--line); vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
td { white-space: nowrap; } td:first-child, .prints td { white-space: normal; } tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; color: var(--soft); }
.prints td { text-align: left; overflow-wrap: anywhere; font-size: .85rem; min-width: 6rem; }
.prints th { text-align: left; }
.differs td { background: var(--mark); } .differs td:first-child { font-weight: 700; }
.row { display: grid; grid-template: "name dots value" / minmax(9rem, 14rem) 1fr 5rem; gap: 0 .75rem;
  align-items: center; }
.row .name { grid-area: name; overflow-wrap: anywhere; line-height: 1.25; padding: .25rem 0; }
.row svg { grid-area: dots; display: block; width: 100%; }
.row .value { grid-area: value; text-align: right; font-variant-numeric: tabular-nums; font-weight: 600; }
.row small { display: block; color: var(--soft); }
svg .axis { stroke: var(--line); } svg .one { stroke: var(--soft); stroke-dasharray: 4 3; }
svg .bar { stroke: var(--dot); stroke-width: 4; opacity: .45; } svg .dot { fill: var(--dot); }
svg .mean { fill: var(--card); stroke: var(--dot); stroke-width: 3; } svg text { fill: var(--soft); font-size: 12px; }
svg .margin { fill: var(--soft); opacity: .12; }
pre { overflow-x: auto; background: var(--bg); border: 1px solid var(--line); border-radius: .4rem; padding: .75rem;
  font-size: .85rem; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0; }
ul { margin: 0; padding-left: 1.2rem; } li { overflow-wrap: anywhere; } summary { cursor: pointer; color: var(--soft); }
dt { font-weight: 600; } dd { margin: 0 0 .5rem; color: var(--soft); }
@media (max-width: 600px) { main { padding: .5rem; } section { padding: .8rem; }
  .row { grid-template: "name value" "dots dots" / 1fr auto; padding: .3rem 0; border-bottom: 1px solid var(--line); }
  .row.axis { border: 0; } th, td { padding: .3rem .35rem; font-size: .9rem; } }
"""


def _e(value: object) -> str:
    return html.escape(str(value), quote=True)


def _table(head: Sequence[object], rows: Sequence[Sequence[object]]) -> str:
    top = "".join(f'<th scope="col">{_e(cell)}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{_e(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="scroll"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{_e(title)}</h2>{body}</section>"


class _Scale:
    """Log scale of ratios onto 0..100 %, with 1.0 in the middle and room for every value."""

    def __init__(self, ratios: Sequence[float]) -> None:
        self.reach = 1.12 * max([math.log(1.1), *(abs(math.log(ratio)) for ratio in ratios)])

    def at(self, ratio: float) -> float:
        return 50.0 + 50.0 * max(-1.0, min(1.0, math.log(ratio) / self.reach))

    def ticks(self) -> list[float]:
        """Round ratios with room for their labels, 1.0 among them."""
        kept: list[float] = [1.0]
        for tick in sorted(_TICKS, key=lambda ratio: abs(math.log(ratio))):
            place = self.at(tick)
            if 7 <= place <= 93 and all(abs(place - self.at(other)) >= 16 for other in kept):
                kept.append(tick)
        return sorted(kept)


def _plot_row(
    name: str,
    hint: str,
    ratios: Sequence[float],
    mean: float | None,
    low: float | None,
    high: float | None,
    scale: _Scale,
    margin: float,
) -> str:
    parts = []
    left, right = scale.at(1 / (1 + margin)), scale.at(1 + margin)
    parts.append(f'<rect class="margin" x="{left:.2f}%" width="{right - left:.2f}%" y="0" height="36"/>')
    parts.append('<line class="one" x1="50%" x2="50%" y1="0" y2="36"/>')
    if low is not None and high is not None:
        parts.append(f'<line class="bar" x1="{scale.at(low):.2f}%" x2="{scale.at(high):.2f}%" y1="18" y2="18"/>')
    parts.extend(f'<circle class="dot" cx="{scale.at(ratio):.2f}%" cy="18" r="4"/>' for ratio in ratios)
    if mean is not None and len(ratios) != 1:
        parts.append(f'<circle class="mean" cx="{scale.at(mean):.2f}%" cy="18" r="6"/>')
    label = f"{name}: {change(mean)}"
    return (
        f'<div class="row"><div class="name">{_e(name)}<small>{_e(hint)}</small></div>'
        f'<svg height="36" role="img" aria-label="{_e(label)}">{"".join(parts)}</svg>'
        f'<div class="value">{_e(change(mean))}</div></div>'
    )


def _plot(c: Mapping[str, Any]) -> str:
    verdict = c["verdict"]
    base, cand = names(c)
    rows = [(row, [item["ratio"] for item in row["pair_ratios"]]) for row in c["prompts"]]
    every = [ratio for _, ratios in rows for ratio in ratios]
    every += [value for value in (verdict["ci_low"], verdict["ci_high"], verdict["ratio"]) if value is not None]
    scale = _Scale(every)
    parts = []
    for row, ratios in rows:
        hint = f"{number(row['baseline_e2e_tok_per_s'])} → {number(row['candidate_e2e_tok_per_s'])} tok/s"
        if row["candidate_draft_n"]:
            hint += f", {row['candidate_draft_n_accepted']} of {row['candidate_draft_n']} drafts accepted"
        low, high = (min(ratios), max(ratios)) if len(ratios) > 1 else (None, None)
        parts.append(_plot_row(row["key"], hint, ratios, row["ratio"], low, high, scale, verdict["margin"]))
    pairs = [row["ratio"] for row in c["rounds"] if row["ratio"] is not None]
    hint = "one dot per pair" + ("; bar: 95 % interval" if verdict["ci_low"] is not None else "")
    parts.append(
        _plot_row(
            "all prompts",
            hint,
            pairs,
            verdict["ratio"],
            verdict["ci_low"],
            verdict["ci_high"],
            scale,
            verdict["margin"],
        )
    )
    ticks = "".join(
        f'<text x="{scale.at(tick):.2f}%" y="14" text-anchor="middle">{_e("1×" if tick == 1 else f"{tick:g}×")}</text>'
        for tick in scale.ticks()
    )
    parts.append(f'<div class="row axis"><svg height="18" aria-hidden="true">{ticks}</svg></div>')
    text = (
        f"Speed of {cand} / {base}, end to end: right of the dashed line {cand} is faster. Dots are pairs of blocks, "
        f"a ring is their geometric mean, a bar their range; "
        f"the grey band is the margin of {number(verdict['margin'], 1, 100)} %."
    )
    return f'<p class="soft">{_e(text)}</p><div class="plot">{"".join(parts)}</div>'


def _fingerprints(c: Mapping[str, Any]) -> str:
    base, cand = names(c)
    rows = fingerprint_rows(c)

    def table(part: Sequence[tuple[str, str, str, bool]]) -> str:
        body = "".join(
            f"<tr{' class=differs' if differs else ''}>"
            + "".join(f"<td>{_e(cell)}</td>" for cell in (key, one, two))
            + "</tr>"
            for key, one, two, differs in part
        )
        head = "".join(f'<th scope="col">{_e(cell)}</th>' for cell in ("key", base, cand))
        rows_html = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
        return f'<div class="scroll"><table class="prints">{rows_html}</table></div>'

    differing, equal = [row for row in rows if row[3]], [row for row in rows if not row[3]]
    top = table(differing) if differing else "<p>Nothing differs.</p>"
    return f"{top}<details><summary>{len(equal)} equal entries</summary>{table(equal)}</details>"


def _headline(verdict: Mapping[str, Any]) -> str:
    """The figure big under the word; where there is no verdict yet the word, so that nobody reads the figure as one."""
    word, figure = _e(verdict["word"]), _e(change(verdict["ratio"]))
    if verdict["word"] in _UNDECIDED:
        return f'<p class="big">{word} <span class="soft aside">{figure}</span></p>'
    return f'<span class="word">{word}</span><p class="big">{figure}</p>'


def render_html(c: Mapping[str, Any]) -> str:
    """The whole page; `c` is the content of `comparison.json`. Every text from it is escaped."""
    base, cand = names(c)
    verdict = c["verdict"]
    tone = _TONES.get(verdict["word"], "wait")
    title = f"{cand} against {base}: {verdict['word']}"
    facts = (
        f"Host {c['host']}, slot {c['slot']}, suite {c['suite']}, {len(c['rounds'])} of {c['pairs']} pairs, "
        f"{moment(c.get('started_at'))}, session {c['session']}"
    )
    found = notes(c)
    parts = [
        f'<section class="verdict {tone}">{_headline(verdict)}<h1>{_e(cand)} against {_e(base)}</h1>'
        f"<p>{_e(verdict['text'])}</p><p class=soft>{_e(facts)}</p></section>"
    ]
    if found:
        parts.append(_section("Before you believe it", "<ul>" + "".join(f"<li>{_e(n)}</li>" for n in found) + "</ul>"))
    rows = arm_rows(c)
    missing = sorted({f"{row.name}: {row.note}" for row in rows if row.note})
    parts.append(
        _section(
            "Arms",
            _table(["", base, cand, "change"], [(row.name, row.baseline, row.candidate, row.change) for row in rows])
            + f'<p class="soft">End to end: {_e(interval_text(c))}.</p>'
            + "".join(f'<p class="soft">{_e(line)}.</p>' for line in missing),
        )
    )
    parts.append(_section("Prompts", _plot(c)))
    round_rows = [
        (
            row["pair"] + 1,
            row["first"],
            number(row["baseline_e2e_tok_per_s"]),
            number(row["candidate_e2e_tok_per_s"]),
            change(row["ratio"]),
        )
        for row in c["rounds"]
    ]
    order = f'<p class="soft">Order: {_e(" ".join(c["order"]))}. End to end tok/s, geometric mean over the prompts.</p>'
    parts.append(_section("Pairs", _table(["pair", "first", base, cand, "change"], round_rows) + order))
    parts.append(_section("Equal replies", "<ul>" + "".join(f"<li>{_e(x)}</li>" for x in match_lines(c)) + "</ul>"))
    parts.append(_section("Fingerprints", _fingerprints(c)))
    parts.append(_section("Repeat", f"<pre>{_e(chr(10).join(repeat_lines(c)))}</pre>"))
    words = "".join(f"<dt>{_e(key)}</dt><dd>{_e(text)}</dd>" for key, text in c.get("definitions", {}).items())
    parts.append(f"<section><details><summary>Definitions</summary><dl>{words}</dl></details></section>")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{_e(title)}</title><style>{_STYLE}</style></head><body><main>{''.join(parts)}</main></body></html>\n"
    )
