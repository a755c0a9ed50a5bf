"""The commands of `./specswap`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

from specswap import __version__
from specswap.completion import SHELLS, render
from specswap.errors import ConsoleError
from specswap.paths import Paths, find_paths
from specswap.testing import PARTS

EXIT_CODES = """\
exit codes: 0 done, 1 something failed, 2 wrong usage, 130 interrupted (Ctrl-C).
SPECSWAP_DEBUG=1 shows the traceback of an error."""

FIRST_STEPS = """\
specswap provisions hosts, serves speculative-decoding variants, swaps them through a health gate and compares them.

Three things to type first:
  ./specswap demo          the whole mission on a sandbox host of this machine, from nothing to a report
  ./specswap test          lint, units, real hosts: everything needed to trust it
  ./specswap demo --down   takes the sandbox host away again

All commands: ./specswap --help; one of them: ./specswap COMMAND --help; pages: docs/"""

Handler = Callable[[argparse.Namespace, Paths], int]


@dataclass(frozen=True)
class Command:
    """One command: its parser's texts, its arguments, its work."""

    name: str
    summary: str
    description: str
    examples: str
    arguments: Callable[[argparse.ArgumentParser], None]
    handler: Handler


def demo(arguments: argparse.Namespace, paths: Paths) -> int:
    """`demo`: runs it, or takes it down."""
    from specswap import demo as work
    from specswap.demo_tools import demo_tools
    from specswap.progress import Steps

    tools = demo_tools(paths)
    if arguments.down:
        return work.take_down(tools, print)
    options = work.Options(host=arguments.host, keep_going=arguments.keep_going)
    return work.Demo(paths, options, tools, Steps(work.STEPS)).run()


def test(arguments: argparse.Namespace, paths: Paths) -> int:
    """`test`: runs the wanted parts."""
    from specswap.testing import Request, run_tests

    request = Request(
        parts=PARTS if arguments.part == "all" else (arguments.part,),
        keyword=arguments.keyword,
        pythons=arguments.python,
        hosts=arguments.hosts,
    )
    results = run_tests(paths, request, _say)
    return 1 if any(result.ok is False for result in results) else 0


def check(arguments: argparse.Namespace, paths: Paths) -> int:
    """`check`: linters, or the units of an inventory."""
    from specswap.testing import Request, run_tests

    if arguments.what == "units":
        from specswap.unit_check import check_units

        return check_units(paths, arguments.inventory or [paths.root / "inventory"], _say)
    results = run_tests(paths, Request(parts=("lint",), pythons=arguments.python), _say)
    return 1 if any(result.ok is False for result in results) else 0


def measure(arguments: argparse.Namespace, paths: Paths) -> int:
    """`measure`: runs one measure, or lists them."""
    from specswap.measure import find, names, run_measure

    if arguments.name is None:
        for name in names():
            print(f"{name:12} {find(name).SUMMARY}")
        return 0
    run_measure(paths, arguments.name, _say)
    return 0


def lock(arguments: argparse.Namespace, paths: Paths) -> int:
    """`lock`: compiles the lock of an environment."""
    from specswap.locks_command import run_lock

    return run_lock(arguments, paths, _say)


def wheelhouse(arguments: argparse.Namespace, paths: Paths) -> int:
    """`wheelhouse`: fetches what the hosts of an inventory need."""
    from specswap.supplies import fetch

    fetch(paths, arguments.inventory or [paths.root / "inventory"], _say, hosts=arguments.limit or None)
    return 0


def completion(arguments: argparse.Namespace, _paths: Paths) -> int:
    """`completion`: prints the script."""
    print(render(build_parser(), arguments.shell), end="")
    return 0


def sandbox(arguments: argparse.Namespace, _paths: Paths) -> int:
    """`sandbox`: hands over to the sandbox's own commands."""
    from specswap_sandbox.__main__ import main as sandbox_main

    return sandbox_main(arguments.rest)


def _say(line: str) -> None:
    print(line, flush=True)


def _demo_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--down", action="store_true", help="take everything away again, and look that nothing is left")
    parser.add_argument("--host", default="ct200", metavar="NAME", help="name of the sandbox host (default: ct200)")
    parser.add_argument("--keep-going", action="store_true", help="do the later steps even when one fails; exit code 1")


def _python_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="X.Y",
        help="only on this Python (repeatable; default: all found)",
    )


def _test_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", nargs="?", default="all", choices=(*PARTS, "all"), help="what to test (default: all)")
    parser.add_argument(
        "-k", dest="keyword", default="", metavar="EXPRESSION", help="only tests that match, as in pytest"
    )
    _python_argument(parser)
    parser.add_argument(
        "--hosts", default="", metavar="SPEC", help="testinfra: check this host instead of a sandbox host of its own"
    )


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="?", default="lint", choices=("lint", "units"), help="what to check (default: lint)"
    )
    _python_argument(parser)
    _inventory_argument(parser)


def _inventory_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-i",
        "--inventory",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="repeatable; default: inventory",
    )


def _measure_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="which measure; without a name they are listed")


def _lock_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "environment",
        nargs="?",
        metavar="ENVIRONMENT",
        help="folder in locks/, such as venv_llamacpp, or uv; default: all",
    )
    parser.add_argument("--flavour", default="cpu", help="CUDA flavour, or cpu (default)")
    parser.add_argument("--python", default="3.11", metavar="X.Y", help="lowest Python of the hosts (default: 3.11)")
    parser.add_argument("--glibc", default="2.28", metavar="A.B", help="lowest glibc of the hosts (default: 2.28)")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 when the lock would change")
    parser.add_argument("--upgrade", action="store_true", help="take newer versions where the source allows them")


def _wheelhouse_arguments(parser: argparse.ArgumentParser) -> None:
    _inventory_argument(parser)
    parser.add_argument(
        "-l", "--limit", action="append", default=[], metavar="HOST", help="only for this host (repeatable)"
    )


def _completion_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell to write for")


def _sandbox_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rest", nargs=argparse.REMAINDER, metavar="...", help="see ./specswap sandbox --help")


COMMANDS = (
    Command(
        "demo",
        "the whole mission on a sandbox host of this machine",
        """\
        Installs what the sandbox needs, starts a host with real systemd and real SSH, provisions it, compares two
        variants on it, and ends with a table, the report and three commands to type next. Safe to repeat: the second
        time it says that nothing had to change. The sandbox needs root, or sudo without a password (sudo -v first).""",
        """\
        ./specswap demo
        ./specswap demo --down
        ./specswap demo --host h1 --keep-going""",
        _demo_arguments,
        demo,
    ),
    Command(
        "test",
        "lint, units, real hosts, testinfra",
        """\
        Runs every stage even when one fails, prints the slowest tests and one line per stage. Units run on every
        Python of this machine that the project supports; integration, faults and testinfra need root for sandbox hosts.
        Without a part, and with -k, only some faults are injected; `test faults` injects all, writes
        results/faults.json and makes docs/faults.md from it.""",
        """\
        ./specswap test
        ./specswap test unit -k journal --python 3.11
        ./specswap test faults
        ./specswap test testinfra --hosts 'ansible://ct200?ansible_inventory=inventory'""",
        _test_arguments,
        test,
    ),
    Command(
        "check",
        "linters only, or the units of an inventory",
        """\
        lint: shellcheck, ruff, mypy, yamllint, ansible-lint, syntax, ansible-doc.
        units: renders every unit that an inventory declares and lets systemd-analyze verify and rate it.""",
        """\
        ./specswap check
        ./specswap check units -i inventory -i my-hosts.yml""",
        _check_arguments,
        check,
    ),
    Command(
        "measure",
        "takes figures and writes results/bench/NAME.json",
        "Runs one measure and prints one line per figure. The figures do not decide the exit code.",
        """\
        ./specswap measure
        ./specswap measure demo""",
        _measure_arguments,
        measure,
    ),
    Command(
        "lock",
        "compiles the hash-pinned lock of an environment",
        "Compiles locks/ENVIRONMENT/*.in into a lock with hashes, for one CUDA flavour, Python and glibc.",
        """\
        ./specswap lock --check
        ./specswap lock venv_llamacpp --upgrade""",
        _lock_arguments,
        lock,
    ),
    Command(
        "wheelhouse",
        "fetches the wheels and models that hosts need",
        """\
        Hosts need no way out to the network: the controller brings what their locks pin, verified by hash, from
        .specswap/wheelhouse/. A complete wheelhouse costs a look.""",
        """\
        ./specswap wheelhouse
        ./specswap wheelhouse -i inventory -i my-hosts.yml -l ct200""",
        _wheelhouse_arguments,
        wheelhouse,
    ),
    Command(
        "sandbox",
        "hosts with real systemd on this machine",
        "Handed over to the sandbox's own commands: up, wait, status, exec, ssh, crash, start, cut, heal, down.",
        """\
        ./specswap sandbox up h1 h2
        ./specswap sandbox ssh ct200
        ./specswap sandbox down""",
        _sandbox_arguments,
        sandbox,
    ),
    Command(
        "completion",
        "prints shell completion",
        "Prints a completion script, generated from the commands themselves.",
        """\
        source <(./specswap completion bash)
        ./specswap completion fish | source""",
        _completion_arguments,
        completion,
    ),
)


def build_parser() -> argparse.ArgumentParser:
    """The parser of the whole console."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="./specswap", description=FIRST_STEPS.split("\n", 1)[0], epilog=EXIT_CODES, formatter_class=raw
    )
    parser.add_argument("--version", action="version", version=f"specswap {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for command in COMMANDS:
        examples = "\n".join(f"  {line}" for line in dedent(command.examples).splitlines())
        sub = commands.add_parser(
            command.name,
            help=command.summary,
            description=dedent(command.description),
            epilog=f"examples:\n{examples}\n\n{EXIT_CODES}",
            formatter_class=raw,
        )
        command.arguments(sub)
        sub.set_defaults(handler=command.handler)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Expected errors are two lines on stderr, never a traceback."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(FIRST_STEPS)
        return 0
    if words[0] == "sandbox":
        # Its own parser answers --help and everything else.
        arguments = argparse.Namespace(handler=sandbox, rest=words[1:])
    else:
        arguments = build_parser().parse_args(words)
        if getattr(arguments, "handler", None) is None:
            build_parser().error("which command?")
    return _guarded(arguments)


def _guarded(arguments: argparse.Namespace) -> int:
    try:
        handler: Handler = arguments.handler
        return handler(arguments, find_paths())
    except ConsoleError as error:
        return _failed(error, error.what, error.way_out, error.exit_code)
    except KeyboardInterrupt:
        print("specswap: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of a pipe went away; there is nobody left to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        # Errors of our own packages that say everything themselves; anything else is a fault and shows its traceback.
        if type(error).__module__.split(".")[0].startswith("specswap"):
            what, _, way_out = str(error).partition("\n")
            return _failed(error, what, way_out, 1)
        raise


def _failed(error: Exception, what: str, way_out: str, code: int) -> int:
    if os.environ.get("SPECSWAP_DEBUG") == "1":
        raise error
    print(f"specswap: {what}", file=sys.stderr)
    if way_out:
        print(f"  {way_out}", file=sys.stderr)
    return code
