"""`python -m specswap_bench`: run a session, measure one block, render reports, list suites."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import __version__

_EPILOG = """\
exit codes: 0 done (or compared), 1 the block could not be measured, 2 wrong usage or input, 7 a comparison whose
blocks failed. Failed requests are part of a block: it is printed and counts them.

examples:
  python -m specswap_bench suites
  python -m specswap_bench block --url http://127.0.0.1:30001 --model smollm2 --suite story
  python -m specswap_bench report results/latest/comparison.json --out results/latest
"""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m specswap_bench",
        description="Measure LLM servers: blocks of prompts, paired comparisons, honest verdicts.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"specswap_bench {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")

    session = commands.add_parser(
        "run-session",
        help="run a comparison as part of a job on the host",
        description="What a job of kind compare runs: swap and measure in ABBA BAAB order, then give the slot back.",
    )
    session.add_argument("--plan", required=True, type=Path, help="the job's plan.json")

    block = commands.add_parser(
        "block",
        help="measure one running server once",
        description="Warm-up, flush of the prompt cache, all prompts of a suite once, one at a time.",
    )
    block.add_argument("--url", help="base URL without a path, as http://127.0.0.1:30001")
    block.add_argument("--model", help="model name for the requests")
    block.add_argument("--suite", default="story", help="a shipped suite or the path of a .jsonl file (default: story)")
    block.add_argument("--engine", choices=("llamacpp", "sglang"), help="default: ask the server")
    block.add_argument("--max-tokens", type=int, default=256, help="limit of each reply (default: 256)")
    block.add_argument("--warmup", type=int, default=6, help="most warm-up requests (default: 6)")
    block.add_argument("--json", action="store_true", help="print the whole block as JSON")
    block.add_argument(
        "--stdin",
        action="store_true",
        help="read url, model, suite, request, engine and warmup as one JSON object and print JSON",
    )

    report = commands.add_parser(
        "report",
        help="render comparison.json",
        description="Write report.md and report.html beside each other and print the table.",
    )
    report.add_argument("comparison", type=Path, help="a comparison.json")
    report.add_argument("--out", type=Path, help="folder for report.md and report.html (default: none are written)")

    commands.add_parser("suites", help="list the shipped suites and their prompts")
    return parser


def _run_session(arguments: argparse.Namespace) -> int:
    from .hostswap import HostSwapper
    from .session import Session, SessionError, load_plan

    try:
        plan = load_plan(arguments.plan)
        swapper, journal = HostSwapper.open(plan.slot, plan.session)
    except (SessionError, ValueError) as error:
        print(f"specswap_bench: {error}", file=sys.stderr)
        return 2

    # The job's folder is <slot>/jobs/<job>; sessions lie beside the jobs.
    directory = arguments.plan.resolve().parents[2] / "sessions" / plan.session
    return Session(plan, swapper, journal, directory).run()


def _block(arguments: argparse.Namespace) -> int:
    from .blocks import BlockError, run_block
    from .client import RequestSettings
    from .suites import Suite, load_suite

    try:
        if arguments.stdin:
            order = json.load(sys.stdin)
            suite = Suite.from_dict(order["suite"])
        else:
            order = {
                "url": arguments.url,
                "model": arguments.model,
                "request": {"max_tokens": arguments.max_tokens},
                "engine": arguments.engine,
                "warmup": arguments.warmup,
            }
            suite = load_suite(arguments.suite)
        for key in ("url", "model"):
            if not order.get(key):
                raise ValueError(f"block: give --{key}")
        settings = RequestSettings.from_dict(order["request"])
    except KeyError as error:
        print(f"specswap_bench: the order on standard input lacks {error}", file=sys.stderr)
        return 2
    except ValueError as error:
        print(f"specswap_bench: {error}", file=sys.stderr)
        return 2

    def say(line: str) -> None:
        print(line, file=sys.stderr, flush=True)

    try:
        block = run_block(
            order["url"],
            order["model"],
            suite,
            settings,
            engine=order.get("engine"),
            warmup_cap=order.get("warmup", 6),
            progress=say,
        )
    except BlockError as error:
        print(f"specswap_bench: {error}", file=sys.stderr)
        return 1
    body = block.to_dict()
    if arguments.json or arguments.stdin:
        json.dump(body, sys.stdout, indent=2, sort_keys=True)
        print()
    else:
        _print_block(body)
    return 0


def _print_block(body: dict[str, Any]) -> None:
    from .figures import block_line

    summary = body["summary"]
    print(f"engine {body['engine']}, suite {body['suite']}, cache: {body['cache_protocol']}")
    print(block_line(summary))


def _report(arguments: argparse.Namespace) -> int:
    from .report import render_html, render_markdown, render_table

    try:
        comparison = json.loads(arguments.comparison.read_text(encoding="utf-8"))
        schema = comparison["schema"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"specswap_bench: {arguments.comparison}: no comparison: {error!r}", file=sys.stderr)
        return 2
    if schema != 1:
        print(f"specswap_bench: {arguments.comparison}: schema {schema}; this version reads schema 1", file=sys.stderr)
        return 2
    if arguments.out is not None:
        from specswap_host.atomic import write_text

        arguments.out.mkdir(parents=True, exist_ok=True)
        write_text(arguments.out / "report.md", render_markdown(comparison))
        write_text(arguments.out / "report.html", render_html(comparison))
        print(f"wrote {arguments.out / 'report.md'} and {arguments.out / 'report.html'}", file=sys.stderr)
    print(render_table(comparison), end="")
    return 0


def _suites() -> int:
    from .suites import load_suite, suite_names

    for name in suite_names():
        suite = load_suite(name)
        print(f"{name}: {len(suite.prompts)} prompts, {len(suite.warmup)} for warm-up, sha256 {suite.sha256[:12]}")
        for prompt in suite.prompts:
            first = " ".join(prompt.turns[0].split())
            print(f"  {prompt.id:<12} {prompt.category:<12} {prompt.max_tokens:>4} tokens  {first[:60]}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        if arguments.command == "run-session":
            return _run_session(arguments)
        if arguments.command == "block":
            return _block(arguments)
        if arguments.command == "report":
            return _report(arguments)
        return _suites()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
