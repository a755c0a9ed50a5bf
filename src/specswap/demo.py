"""`./specswap demo`: the whole mission on a sandbox host, from bare machine to report, and all of it away again."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from specswap.errors import ConsoleError
from specswap.leftovers import counted
from specswap.paths import Paths
from specswap.plays import PlayResult
from specswap.progress import Steps, seconds

ARMS = ("baseline", "ngram")
SLOT_REGISTRY = "/etc/specswap/slots"
STEPS = 6


class Hosts(Protocol):
    """The part of the sandbox that the demo uses."""

    @property
    def inventory(self) -> Path:
        """Inventory of the running hosts."""

    def up(self, names: Sequence[str], progress: Callable[[str], None]) -> None:
        """Builds and starts hosts; idempotent."""

    def wait(self, timeout_s: float) -> object:
        """Until every host answers over SSH."""

    def hosts(self) -> list[str]:
        """Names of the hosts that exist."""

    def down(self) -> None:
        """Removes everything; idempotent."""

    def exec(self, name: str, argv: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Runs a command as root inside a host."""


class Play(Protocol):
    """Runs one playbook; see `specswap.plays.Player`."""

    def __call__(
        self,
        playbook: str,
        *,
        inventories: Sequence[Path],
        limit: str | None = None,
        variables: Mapping[str, Any] | None = None,
        say: Callable[[str], None] = ...,
    ) -> PlayResult:
        """Runs the playbook to its end."""


@dataclass(frozen=True)
class Tools:
    """What the demo works with; tests put doubles here.

    Attributes:
        hosts: the sandbox.
        missing: system packages that the sandbox needs and the machine lacks.
        install: installs them.
        supplies: brings wheels and models that the hosts of the inventories need into the wheelhouse.
        play: runs a playbook.
        table: renders `comparison.json` for a terminal.
        leftovers: what of the sandbox is on the machine.
    """

    hosts: Hosts
    missing: Callable[[], list[str]]
    install: Callable[[Callable[[str], None]], None]
    supplies: Callable[[Sequence[Path], Callable[[str], None]], None]
    play: Play
    table: Callable[[dict[str, Any]], str]
    leftovers: Callable[[], list[str]]


@dataclass(frozen=True)
class Options:
    """`host`: name of the sandbox host. `keep_going`: do the later steps even when one fails."""

    host: str = "ct200"
    keep_going: bool = False


class Demo:
    """The steps of one demo."""

    def __init__(self, paths: Paths, options: Options, tools: Tools, steps: Steps) -> None:
        self._paths = paths
        self._options = options
        self._tools = tools
        self._steps = steps
        self._failed: list[str] = []

    @property
    def inventories(self) -> list[Path]:
        """Own data first, then how to reach the sandbox hosts."""
        return [self._paths.root / "inventory", self._tools.hosts.inventory]

    def run(self, out: Callable[[str], None] = print) -> int:
        """Runs all steps; returns the console's exit code.

        Raises:
            ConsoleError: a step failed and `keep_going` is not set.
            KeyboardInterrupt: Ctrl-C; the host stays up, which is said.
        """
        tools, steps, host = self._tools, self._steps, self._options.host
        up = False
        try:
            with self._step("system packages"):
                missing = tools.missing()
                steps.say(f"installing {', '.join(missing)}" if missing else "all there")
                if missing:
                    tools.install(steps.say)
            with self._step(f"sandbox host {host}"):
                tools.hosts.up([host], progress=steps.say)
                up = True
                tools.hosts.wait(timeout_s=90.0)
                steps.say(f"{host} answers over SSH, systemd is running")
            with self._step("wheels and models"):
                tools.supplies(self.inventories, steps.say)
            with self._step("provision: site.yml"):
                self._provision()
            fresh = None
            with self._step(f"compare {' and '.join(ARMS)}: compare.yml"):
                fresh = self._compare()
            with self._step("report"):
                if fresh is None:
                    raise ConsoleError("there is no comparison to report", "See the failed step above.")
                document = json.loads(fresh.read_text(encoding="utf-8"))
                check_comparison(document, fresh)
        except KeyboardInterrupt:
            if up:
                steps.say("")
                steps.say(f"{host} stays up, and a job that was submitted to it goes on to its end.")
                steps.say("Go on: ./specswap demo (it waits for that job). Take it down: ./specswap demo --down")
            raise
        except Exception:
            if up:
                steps.say(f"{host} stays up for a look: ./specswap sandbox ssh {host}")
                steps.say("Take it down: ./specswap demo --down")
            raise
        if self._failed:
            steps.say(f"failed: {', '.join(self._failed)}")
        if fresh is not None:
            self._show(document, fresh, out)
        return 1 if self._failed else 0

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        try:
            with self._steps.step(name):
                yield
        except ConsoleError as error:
            # Without a host nothing can follow; every later step is worth a try when that is wanted.
            if not self._options.keep_going or len(self._steps.records) < 3:
                raise
            self._steps.say(f"{error.what}. {error.way_out}")
            self._failed.append(name)

    def _wait_for_job(self, patience_s: float = 600.0) -> None:
        """Waits for a job that an earlier, interrupted demo left at work: it outlives its controller by design."""
        host, said = self._options.host, False
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            asked = self._tools.hosts.exec(host, ["specswap-host", "status", "--json"], timeout_s=60.0)
            job = job_at_work(asked.stdout)
            if not job:
                return
            if not said:
                self._steps.say(f"job {job} of an earlier run is still at work on {host}: waiting for its end")
                said = True
            time.sleep(1.0)
        raise ConsoleError(
            f"job {job} on {host} has not ended within {patience_s:.0f} s",
            f"Look at it: ./specswap sandbox exec {host} specswap-host history. Start anew: ./specswap demo --down",
        )

    def _provision(self) -> None:
        host, steps = self._options.host, self._steps
        there = self._tools.hosts.exec(host, ["test", "-d", SLOT_REGISTRY], timeout_s=30.0).returncode == 0
        if there:
            self._wait_for_job()
        result = self._play("site.yml", {})
        if not there:
            steps.say(f"{host} is provisioned: changed={result.changed}")
        elif result.changed == 0:
            steps.say(f"{host} was provisioned before, and nothing had to change: changed=0")
        else:
            steps.say(f"{host} was provisioned before; it is again what the inventory says: changed={result.changed}")

    def _compare(self) -> Path:
        before = newest(self._paths)
        self._play("compare.yml", {"arms": list(ARMS), "quick": True})
        after = newest(self._paths)
        if after is None or after == before:
            raise ConsoleError(
                f"compare.yml left no new comparison in {self._paths.results}",
                "Look at the log of the play named above; results/ must be writable.",
            )
        return after

    def _play(self, playbook: str, variables: Mapping[str, Any]) -> PlayResult:
        result = self._tools.play(
            playbook,
            inventories=self.inventories,
            limit=self._options.host,
            variables=variables,
            say=self._steps.say,
        )
        if not result.ok:
            raise ConsoleError(
                f"{playbook} failed on {self._options.host}", f"Everything that Ansible said: {result.log}"
            )
        return result

    def _show(self, document: dict[str, Any], comparison: Path, out: Callable[[str], None]) -> None:
        folder = comparison.parent
        out("")
        out(self._tools.table(document).rstrip("\n"))
        out("")
        for label, name in (("HTML", "report.html"), ("Markdown", "report.md"), ("JSON", "comparison.json")):
            if (folder / name).exists():
                out(f"{label + ':':10}{self._paths.shown(folder / name)}")
        out("")
        out(f"The demo took {seconds(self._steps.elapsed)}. Three things to type next:")
        for command, why in self.next_commands():
            out(f"  {command}")
            out(f"      {why}")

    def next_commands(self) -> list[tuple[str, str]]:
        """Exactly three commands with what they do; they work as they stand from the current directory."""
        shown, host = self._paths.shown, self._options.host
        places = " ".join(f"-i {shown(inventory)}" for inventory in self.inventories)
        playbook = shown(self._paths.bin / "ansible-playbook")
        there = "" if Path.cwd() == self._paths.root else f"cd {self._paths.root} && "
        spec = f"ansible://{host}?ansible_inventory={self._tools.hosts.inventory}"
        return [
            (
                f"{there}{playbook} {places} -l {host} swap.yml -e variant=ngram",
                "swaps the running service through the health gate",
            ),
            (
                f"{there}./specswap test testinfra --hosts '{spec}'",
                "checks the provisioned host from the outside",
            ),
            (f"{there}./specswap demo --down", "takes everything away again"),
        ]


def job_at_work(status: str) -> str:
    """The job that holds a slot, read from `specswap-host status --json`; empty when none does or nothing answers."""
    try:
        slots = json.loads(status)["slots"].values()
    except (ValueError, KeyError, AttributeError):
        return ""
    return next((str(slot["busy"]["job"]) for slot in slots if slot.get("busy") and slot["busy"]["job"]), "")


def newest(paths: Paths) -> Path | None:
    """`comparison.json` of the newest comparison, in its own folder and not through the link; None without one."""
    return paths.latest.resolve() if paths.latest.exists() else None


def check_comparison(document: Mapping[str, Any], path: Path) -> None:
    """Makes sure that the comparison holds both arms with tokens that were really made.

    Raises:
        ConsoleError: an arm is missing, or counts no tokens.
    """
    arms = document.get("arms", {})
    for arm in ARMS:
        tokens = arms.get(arm, {}).get("completion_tokens")
        if not isinstance(tokens, int) or tokens <= 0:
            raise ConsoleError(
                f"{path}: arms.{arm}.completion_tokens is {tokens!r}: no token was measured",
                "The blocks in the same file say why the requests failed.",
            )


def take_down(tools: Tools, say: Callable[[str], None], patience_s: float = 5.0) -> int:
    """Removes the demo's hosts and looks whether anything is left; returns the console's exit code.

    Processes that were killed may take a moment to vanish: what is still there is looked at again for `patience_s`.
    """
    before = tools.leftovers()
    names = tools.hosts.hosts()
    tools.hosts.down()
    deadline = time.monotonic() + patience_s
    while (after := tools.leftovers()) and time.monotonic() < deadline:
        time.sleep(0.2)
    if after:
        say("still there, although it should be gone:")
        for item in after:
            say(f"  {item}")
        say("Try once more; what then remains can be removed by hand (docs/sandbox.md).")
        return 1
    if before:
        say(f"removed: {', '.join(names) or 'no host'} ({counted(before)})")
    else:
        say("nothing of the demo was there")
    say("left on this machine: no process, mount, namespace, link, route or cgroup of the demo")
    say("kept: results/, .specswap/, .venv/ and the cache of the root file system (docs/sandbox.md)")
    return 0
