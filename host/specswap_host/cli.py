"""The command line `specswap-host`, for the plays and for operators on the host."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

# Only what every command needs is imported here: a no-op swap is expected to take less than half a second.
if TYPE_CHECKING:
    from .context import Context, Paths
    from .plan import Plan

DISAGREE = 1
USAGE = 2
REFUSED = 5
INTERRUPTED = 6
COMPARE_FAILED = 7

_EPILOG = """\
exit codes: 0 swapped, nothing to do, or compared; 1 status says that state and host disagree; 2 usage; 3 rolled back;
4 rollback failed; 5 refused, nothing was touched; 6 interrupted; 7 comparison or block failed

examples:
  specswap-host status
  specswap-host swap ngram
  specswap-host rollback
  specswap-host history -n 5
  specswap-host explain
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code. What went wrong is said in one line on stderr."""
    args = _parser().parse_args(argv)
    try:
        return int(args.command(args))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader has gone (`| head`); the null device keeps the interpreter from complaining at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        return _explain(error)


def _explain(error: Exception) -> int:
    from .engines import EngineError
    from .job import Busy
    from .journal import JournalError
    from .plan import PlanError
    from .registry import RegistryError
    from .state import StateError
    from .systemd import SystemdError

    if isinstance(error, Busy):
        print(json.dumps({"refused": str(error), "owner": error.owner.to_dict() if error.owner else None}))
        print(f"specswap-host: refused: {error}", file=sys.stderr)
        return REFUSED
    if isinstance(error, (PlanError, RegistryError, EngineError)):
        print(f"specswap-host: {error}", file=sys.stderr)
        return USAGE
    if isinstance(error, (JournalError, StateError, SystemdError, OSError)):
        print(f"specswap-host: refused: {error}", file=sys.stderr)
        return REFUSED
    raise error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="specswap-host",
        description="Swap, compare and inspect the variants that this host serves.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--root", default=os.environ.get("SPECSWAP_ROOT", "/"), help=argparse.SUPPRESS)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, call: Any, text: str, slot: bool = True) -> argparse.ArgumentParser:
        sub = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        sub.set_defaults(command=call)
        if slot:
            sub.add_argument("--slot", metavar="S", help="the slot (default: the only one)")
        return sub

    sub = command("status", _status, "show what is committed, what really serves, and whether both agree")
    sub.add_argument("--json", action="store_true", help="for machines")

    def breaker(sub: argparse.ArgumentParser) -> None:
        text = "first end the job JOB by force if it holds the slot's lock; for a job that hangs (it is journaled)"
        sub.add_argument("--break-lock", metavar="JOB", help=text)

    sub = command("swap", _swap, "swap the slot to a registered variant and follow it to its end")
    sub.add_argument("variant", metavar="VARIANT")
    sub.add_argument("--json", action="store_true", help="print events as JSON lines")
    breaker(sub)
    sub = command("rollback", _rollback, "swap back to the variant that was active before")
    sub.add_argument("--json", action="store_true", help="print events as JSON lines")
    breaker(sub)
    sub = command("compare", _compare, "compare two registered variants in alternating rounds")
    sub.add_argument("arms", nargs=2, metavar="ARM")
    text = "pairs of rounds (default: as registered)"
    sub.add_argument("--pairs", type=_at_least_one, default=None, metavar="N", help=text)
    sub.add_argument("--quick", action="store_true", help="one pair, figures only, no verdict")
    sub.add_argument("--json", action="store_true", help="print events as JSON lines")
    breaker(sub)
    sub = command("block", _block, "measure what the slot serves, proven before and after, while nobody can swap")
    sub.add_argument("--release", required=True, metavar="PATH", help="environment of the benchmark's client")
    suites = sub.add_mutually_exclusive_group()
    suites.add_argument("--suite", default="story", metavar="NAME", help="a shipped suite (default: story)")
    suites.add_argument("--suite-stdin", action="store_true", help="read the suite on stdin: {name, prompts, warmup}")
    sub.add_argument("--max-tokens", type=_at_least_one, default=256, metavar="N", help="of each reply (default: 256)")
    command("submit", _submit, "read a plan (JSON) on stdin and start its job; prints job, slot, after", slot=False)
    sub = command("follow", _follow, "print a job's events as JSON lines until it has finished")
    sub.add_argument("--job", required=True, metavar="J")
    sub.add_argument("--after", type=int, default=0, metavar="SEQ", help="only events after this sequence number")
    sub.add_argument(
        "--wait",
        type=float,
        default=None,
        metavar="SECONDS",
        help="return as soon as there are events, at the latest after SECONDS (default: follow to the end)",
    )
    sub.add_argument("--text", action="store_true", help="readable lines instead of JSON")
    sub = command("run", _run, "carry out a submitted job (what the job's unit runs)")
    sub.add_argument("--job", required=True, metavar="J")
    command(
        "diff", _diff, "read a plan (JSON) on stdin and print what it would change (JSON); touches nothing", slot=False
    )
    sub = command("history", _history, "list jobs with outcome, duration and downtime")
    sub.add_argument("-n", type=int, default=20, metavar="N", help="the last N jobs (default 20)")
    sub.add_argument("--json", action="store_true", help="for machines")
    sub = command("explain", _explain_job, "tell one job: who, what, why, phases, evidence per tier, outcome")
    sub.add_argument("job", nargs="?", default=None, metavar="JOB", help="(default: the last one)")
    sub.add_argument("--json", action="store_true", help="for machines")
    return parser


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 1 on")
    return int(text)


def _paths(args: argparse.Namespace) -> Paths:
    from .context import Paths

    return Paths(Path(args.root))


def _context(args: argparse.Namespace) -> Context:
    from .context import Context

    return Context(paths=_paths(args))


def _slot(args: argparse.Namespace) -> str:
    from .registry import pick_slot

    return pick_slot(_paths(args), args.slot)


def _plan_from_stdin(what: str = "plan") -> Any:
    from .plan import PlanError

    try:
        return json.load(sys.stdin)
    except ValueError as error:
        raise PlanError(f"the {what} on stdin is not JSON: {error}") from error


# --- commands


def _status(args: argparse.Namespace) -> int:
    """Exit code 0; 1 when what was committed and what is true now disagree in a slot that no job is changing."""
    from .registry import slots
    from .report import job_at_work, slot_status, status_text

    ctx = _context(args)
    names = [_slot(args)] if args.slot else slots(ctx.paths)
    statuses = {name: slot_status(ctx, name) for name in names}
    if args.json:
        print(json.dumps({"schema": 1, "slots": statuses}))
    else:
        texts = [status_text(status) for status in statuses.values()]
        print("\n\n".join(texts) or "no slot on this host; run site.yml")
    return 0 if all(status["agree"] or job_at_work(status) for status in statuses.values()) else DISAGREE


def _history(args: argparse.Namespace) -> int:
    from .history import history, history_text
    from .registry import slots

    paths = _paths(args)
    names = [_slot(args)] if args.slot else slots(paths)
    jobs = [entry for name in names for entry in history(paths, name)]
    jobs = sorted(jobs, key=lambda entry: float(entry["started_at"]))[-args.n :]
    print(json.dumps({"schema": 1, "jobs": jobs}) if args.json else history_text(jobs))
    return 0


def _explain_job(args: argparse.Namespace) -> int:
    from .explain import explain, explain_text, find_job
    from .registry import slots

    paths = _paths(args)
    slot, job = find_job(paths, [_slot(args)] if args.slot else slots(paths), args.job)
    told = explain(paths, slot, job)
    print(json.dumps({"schema": 1, **told}) if args.json else explain_text(told))
    return 0


def _diff(args: argparse.Namespace) -> int:
    from .plan import Plan
    from .report import plan_diff

    print(json.dumps(plan_diff(_context(args), Plan.from_dict(_plan_from_stdin()))))
    return 0


def _block(args: argparse.Namespace) -> int:
    """Exit code 0 with the block as JSON; 5 when nothing was measured, 7 when a block was lost."""
    import signal

    from .block import BlockError, measure_block

    # As an exception, so that the client ends with this process and the slot is not held by one that measures on.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    suite = _plan_from_stdin("suite") if args.suite_stdin else {"name": args.suite}
    order = {"suite": suite, "request": {"max_tokens": args.max_tokens}}
    try:
        result = measure_block(_context(args), _slot(args), args.release, order, _controller())
    except BlockError as error:
        print(f"specswap-host: {'' if error.touched else 'refused: '}{error}", file=sys.stderr)
        return COMPARE_FAILED if error.touched else REFUSED
    print(json.dumps(result))
    return 0


def _submit(args: argparse.Namespace) -> int:
    from .job import submit

    print(json.dumps(submit(_plan_from_stdin(), _context(args)).to_dict()))
    return 0


def _run(args: argparse.Namespace) -> int:
    from .job import run

    return run(_slot_or_given(args), args.job, _context(args))


def _slot_or_given(args: argparse.Namespace) -> str:
    return args.slot or _slot(args)


def _follow(args: argparse.Namespace) -> int:
    """Exit code 0; 6 when the job's process is gone and no end is recorded, 2 when there never was such a job."""
    from .journal import Journal

    paths, slot = _paths(args), _slot_or_given(args)
    journal = Journal(paths.journal(slot))
    after = args.after
    while True:
        events = journal.follow(args.job, after, 1.0 if args.wait is None else max(0.0, args.wait))
        for event in events:
            _show(event, not args.text)
            after = event["seq"]
            if event["event"] == "job_finished":
                return 0
        if not events and _is_gone(args, journal, slot):
            if not journal.read(job=args.job) and not paths.plan(slot, args.job).exists():
                known = f"specswap-host history --slot {slot} lists the known ones"
                print(f"specswap-host: no job {args.job} was submitted for slot {slot}; {known}", file=sys.stderr)
                return USAGE
            print(f"specswap-host: job {args.job} ended without a result; the next job settles it", file=sys.stderr)
            return INTERRUPTED
        if args.wait is not None:
            return 0


def _is_gone(args: argparse.Namespace, journal: Any, slot: str) -> bool:
    from .job import alive

    if alive(_context(args), slot, args.job):
        return False
    # It may have finished between the last look at the journal and the look at its process.
    return not any(event["event"] == "job_finished" for event in journal.read(job=args.job))


def _show(event: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(event), flush=True)
    else:
        from .narrate import narrate

        print(narrate(event), flush=True)


def _swap(args: argparse.Namespace) -> int:
    from .plan import Plan
    from .registry import load

    slot = _slot(args)
    service = load(_paths(args), slot).service(args.variant)
    return _submit_and_follow(args, Plan("swap", _job_id(), slot, _controller(), service=service))


def _rollback(args: argparse.Namespace) -> int:
    from .plan import Plan

    return _submit_and_follow(args, Plan("rollback", _job_id(), _slot(args), _controller()))


def _compare(args: argparse.Namespace) -> int:
    from .plan import Plan
    from .registry import RegistryError, load

    slot = _slot(args)
    registry = load(_paths(args), slot)
    services = {arm: registry.service(arm) for arm in args.arms}
    settings = registry.benchmark
    missing = [key for key in ("suite", "request", "runner") if key not in settings]
    if missing:
        raise RegistryError(
            f"slot {slot}: no benchmark settings are registered ({', '.join(missing)}); run compare.yml once"
        )
    data = {
        "schema": 1,
        "kind": "compare",
        "job": _job_id(),
        "slot": slot,
        "arms": list(args.arms),
        "services": {arm: service.to_dict() for arm, service in services.items()},
        "pairs": 1 if args.quick else settings.get("pairs", 4) if args.pairs is None else args.pairs,
        "quick": args.quick,
        "suite": settings["suite"],
        "request": settings["request"],
        "runner": settings["runner"],
        "controller": _controller().to_dict(),
    }
    return _submit_and_follow(args, Plan.from_dict(data))


def _job_id() -> str:
    import secrets
    import time

    return time.strftime("%Y%m%dT%H%M%SZ-", time.gmtime()) + secrets.token_hex(3)


def _controller() -> Any:
    import socket

    from . import __version__
    from .plan import Controller

    user = os.environ.get("SUDO_USER") or os.environ.get("USER") or str(os.getuid())
    command = "specswap-host " + " ".join(sys.argv[1:])
    return Controller(user, socket.gethostname(), command[:200], __version__)


def _submit_and_follow(args: argparse.Namespace, plan: Plan) -> int:
    from .job import alive, break_lock, submit
    from .journal import Journal

    ctx = _context(args)
    if args.break_lock:
        break_lock(ctx, plan.slot, args.break_lock, plan.controller)
    submitted = submit(plan.to_dict(), ctx)
    journal = Journal(ctx.paths.journal(plan.slot))
    after = submitted.after
    try:
        while True:
            events = journal.follow(plan.job, after, 1.0, poll_s=0.02)
            for event in events:
                _show(event, args.json)
                after = event["seq"]
                if event["event"] == "job_finished":
                    return int(event["detail"]["exit_code"])
            if not events and not alive(ctx, plan.slot, plan.job) and not journal.read(after, plan.job):
                print(f"specswap-host: job {plan.job} ended without a result; run it again", file=sys.stderr)
                return INTERRUPTED
    except KeyboardInterrupt:
        hint = f"specswap-host follow --slot {plan.slot} --job {plan.job} --after {after} --text"
        print(f"\nthe job goes on without you; see it with: {hint}", file=sys.stderr)
        return INTERRUPTED
