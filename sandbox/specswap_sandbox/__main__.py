"""Command line of the sandbox: `python -m specswap_sandbox`."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from . import selftest
from .core import DEFAULT_STATE, DEFAULT_TAG, Sandbox, down_all
from .errors import SandboxError
from .require import BACKENDS, install_requirements

EPILOG = """\
examples:
  python -m specswap_sandbox up ct200 && python -m specswap_sandbox wait
  python -m specswap_sandbox ssh ct200
  ansible-playbook -i /run/specswap-sandbox/inventory.yml site.yml
  python -m specswap_sandbox down

exit codes: 0 done, 1 an error that the message explains, 2 wrong usage; exec and ssh end with the code of their command
"""


def parser() -> argparse.ArgumentParser:
    """The argument parser, one subcommand per word of the sandbox."""
    top = argparse.ArgumentParser(
        prog="python -m specswap_sandbox",
        description="Real systemd hosts with real SSH on this machine. Needs root or sudo.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument(
        "--state",
        type=Path,
        default=DEFAULT_STATE,
        metavar="FOLDER",
        help="keys, inventory, state (default: %(default)s)",
    )
    top.add_argument(
        "--tag",
        default=DEFAULT_TAG,
        help="prefix of links and namespaces; another one per sandbox (default: %(default)s)",
    )
    top.add_argument(
        "--net", default="auto", help="first three octets of the hosts' /24, or auto: a free 10.203.N (default)"
    )
    top.add_argument(
        "--backend", default="auto", choices=("auto", *BACKENDS), help="how hosts are made (default: what works here)"
    )
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def add(word: str, text: str, *, host: bool = False) -> argparse.ArgumentParser:
        sub = commands.add_parser(word, help=text, description=text[0].upper() + text[1:] + ".")
        if host:
            sub.add_argument("host", metavar="NAME", help="name of a host")
        return sub

    add("up", "make and start hosts; those that run are left alone").add_argument(
        "hosts", nargs="+", metavar="NAME", help="name of a host"
    )
    wait = add("wait", "wait until all hosts answer over SSH with systemd running")
    wait.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="give up after so long (default: %(default)g)"
    )
    add("status", "show hosts, addresses and states").add_argument("--json", action="store_true", help="for programs")
    execute = add("exec", "run a command as root inside a host, without SSH", host=True)
    execute.add_argument("--timeout", type=float, metavar="SECONDS", help="kill the command after so long")
    execute.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="the command and its arguments")
    add("crash", "kill a host's PID 1: a power loss", host=True)
    add("start", "start a host after a crash", host=True)
    add("cut", "cut a host's network", host=True)
    add("heal", "restore a host's network", host=True)
    add("inventory", "print the path of the Ansible inventory")
    ssh = add("ssh", "open a shell on a host, or run a command there, as user ops", host=True)
    ssh.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND", help="command for the host's shell")
    add("install", "install the Debian packages that the sandbox needs")
    prove = add("selftest", "prove every operation on this machine with two hosts of its own, and that nothing is left")
    prove.add_argument("--clean", action="store_true", help="only remove what an interrupted selftest left")
    down = add("down", "end all hosts and remove every trace of them")
    down.add_argument("--all", action="store_true", help="every sandbox of this machine, whatever its tag")
    return top


def _say(line: str) -> None:
    print(line, flush=True)


def _status(sandbox: Sandbox, as_json: bool) -> None:
    report = sandbox.status()
    if as_json:
        _say(json.dumps(report))
        return
    if not report:
        _say(f"no sandbox in {sandbox.state}")
    for name, facts in report.items():
        network = "" if facts["connected"] else "  network cut"
        state = facts["system"] or ("starting" if facts["running"] else "off")
        _say(f"{name:<20} {facts['address']!s:<15} {state}{network}")


def _remote(words: Sequence[str]) -> list[str]:
    return list(words[1:] if words and words[0] == "--" else words)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    options = parser().parse_args(arguments)
    try:
        return _command(options)
    except SandboxError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; `down` removes what was made", file=sys.stderr)
        return 130


def _command(options: argparse.Namespace) -> int:
    sandbox = Sandbox(state=options.state, tag=options.tag, net=options.net, backend=options.backend)
    started = time.monotonic()
    word: str = options.command
    if word == "up":
        sandbox.up(options.hosts, _say)
        _say(f"inventory: {sandbox.inventory} ({time.monotonic() - started:.1f} s)")
    elif word == "wait":
        for name, answer in sandbox.wait(options.timeout).items():
            _say(f"{name} {answer}")
    elif word == "status":
        _status(sandbox, options.json)
    elif word == "exec":
        if not _remote(options.argv):
            raise SandboxError(f"exec {options.host}: which command?")
        command = sandbox.exec_argv(options.host, _remote(options.argv), options.timeout)
        os.execvp(command[0], command)
    elif word in ("crash", "start", "cut", "heal"):
        getattr(sandbox, word)(options.host)
    elif word == "inventory":
        sandbox.address(sandbox.hosts()[0]) if sandbox.hosts() else sandbox._load()
        _say(str(sandbox.inventory))
    elif word == "ssh":
        sandbox.address(options.host)
        argv = sandbox.ssh_argv(options.host)
        os.execvp(argv[0], [*argv, *([" ".join(_remote(options.argv))] if options.argv else [])])
    elif word == "install":
        installed = install_requirements(_say, options.backend)
        _say(f"installed: {' '.join(installed)}" if installed else "nothing is missing")
    elif word == "selftest":
        tested = Sandbox(state=selftest.STATE, tag=selftest.TAG, net=options.net, backend=options.backend)
        if options.clean:
            tested.down()
        elif not selftest.SelfTest(tested, _say).run():
            return 1
    elif word == "down":
        down_all(_say) if options.all else sandbox.down()
        _say(f"nothing is left ({time.monotonic() - started:.1f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
