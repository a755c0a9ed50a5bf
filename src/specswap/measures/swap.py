"""The swap beside the shell loop that it replaces: when each knows the truth, and how often each says what is false.

Both sides work on one sandbox host, with the same units and the same server: a double that starts and crashes to order
and writes down itself, by the host's clock, when it was ready and when it ended. Every delay is the moment of the
verdict minus such a stamp. Shares are 0 to 1.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specswap import supplies
from specswap.errors import ConsoleError
from specswap.measure import Row
from specswap.paths import Paths
from specswap.plays import Player

SUMMARY = "readiness, crashes, stale servers and no-ops: the shell loop, specswap-host swap and swap.yml"
TAG = "msw"
STATE = Path("/run/specswap-measure-swap")
HOST = "measured"
SLOT, PORT = "smoke", 30001
PEER = "the shell loop"
UNITS = "/etc/systemd/system"

REPEATS = 15
PLAYS = 3
WARMINGS = 5
POLL_S = 3.0
POLLS = 20
CRASH_S = 2.5
SOAK_S = 1.0
#: Seconds until the server listens. Spread over the loop's period, so that no side gains from where its polls fall.
LOADS_S = (2.0, 2.6, 3.2, 3.8, 4.4)
HOME_S = 0.2
#: Seconds for which a server lists its models and is not yet ready; longer than a pause of the loop.
WARM_S = 6.0
HOME, DOOMED, WARMING, STALE = "home", "doomed", "warming", "specswap-measure-stale.service"

#: The loop as deployment scripts have it: arguments OLD NEW PORT POLLS PAUSE. Kind to itself, it looks before it waits.
LOOP = """\
say() { echo "$1 $(date +%s.%N)"; }
say began
systemctl stop "$1" && systemctl start "$2"
n=0
while [ "$n" -lt "$4" ]; do
  n=$((n + 1))
  [ "$(systemctl is-active "$2")" = failed ] && { say failed; exit 1; }
  curl -s "http://127.0.0.1:$3/v1/models" | grep -q '"id"' && { say healthy; exit 0; }
  sleep "$5"
done
say gave-up
exit 1
"""

#: `specswap-host swap`; arguments VARIANT SLOT, and `watch` to read the peak memory of the job's process beside it.
SWAP = """\
say() { echo "$1 $(date +%s.%N)"; }
watch() {
  pid=0
  while [ "$pid" = 0 ]; do pid=$(systemctl show --value -p MainPID "specswap-job-$1.service"); done
  while grep VmHWM "/proc/$pid/status"; do sleep 0.1; done 2>/dev/null
}
[ "$3" = watch ] && { watch "$2" & watcher=$!; }
say began
specswap-host swap "$1" --slot "$2" --json
code=$?
say ended
[ "$3" = watch ] && { kill "$watcher"; wait "$watcher"; } 2>/dev/null
exit "$code"
"""

#: Copies of the crashing unit, each with a loop of its own, all at once: the loops sleep nearly all the time.
#: Arguments UNIT VARIANT LANES LOOP PORT POLLS PAUSE and the folder of units.
LANES = """\
cd "$8" || exit 1
said=$(mktemp -d)
lane=0
while [ "$lane" -lt "$3" ]; do
  lane=$((lane + 1))
  grep -v ^Conflicts= "$1" | sed "s/$2/lane$lane/g" >"specswap-lane$lane.service"
done
systemctl daemon-reload
lane=0
while [ "$lane" -lt "$3" ]; do
  lane=$((lane + 1))
  unit="specswap-lane$lane.service"
  sh -c "$4" loop "$unit" "$unit" "$5" "$6" "$7" >"$said/$lane" &
  sleep 0.5
done
wait
lane=0
while [ "$lane" -lt "$3" ]; do
  lane=$((lane + 1))
  systemctl stop "specswap-lane$lane.service"
  systemctl reset-failed "specswap-lane$lane.service" 2>/dev/null
  echo "lane $lane"
  cat "$said/$lane"
  rm "specswap-lane$lane.service"
done
rm -r "$said"
systemctl daemon-reload
"""


class Host(Protocol):
    """The sandbox host as this measure needs it."""

    def exec(
        self, name: str, argv: Sequence[str], timeout_s: float = 30.0, stdin: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command as root inside the host."""


@dataclass(frozen=True)
class Verdict:
    """One attempt of one side.

    Attributes:
        word: `healthy`, `failed` or `gave-up` of the loop; the outcome of a swap.
        began, at: Unix seconds of the host at which the command began and at which it said its word.
    """

    word: str
    began: float
    at: float

    @property
    def seconds(self) -> float:
        """From the start of the command to its word."""
        return self.at - self.began


@dataclass(frozen=True)
class Job:
    """A swap's command (`verdict`), the events of its job, and the peak resident MiB of the job's process."""

    verdict: Verdict
    events: Sequence[Mapping[str, Any]]
    peak_mib: float | None = None

    def when(self, event: str, tier: int | None = None) -> float | None:
        """Unix seconds of the first event of that name (and tier); None without one."""
        for one in self.events:
            if one["event"] == event and (tier is None or one["tier"] == tier):
                return float(one["t_wall"])
        return None

    def healthy_at(self) -> float | None:
        """When the swap knew that the wanted variant serves; None when it never said so."""
        if self.verdict.word == "noop":
            return self.verdict.at
        return self.when("tier_passed", 4) if self.verdict.word == "swapped" else None


def parse_loop(text: str) -> Verdict:
    """The output of `LOOP`.

    Raises:
        ConsoleError: it does not hold a beginning and an end.
    """
    words = [line.split() for line in text.splitlines() if line.strip()]
    if len(words) < 2 or words[0][0] != "began" or len(words[-1]) != 2:
        raise ConsoleError(f"the shell loop said {text[-200:]!r}", "Look at the host's journal; then measure again.")
    return Verdict(words[-1][0], float(words[0][1]), float(words[-1][1]))


def parse_swap(text: str) -> Job:
    """The output of `SWAP`: JSON events between `began` and `ended`, lines of memory anywhere.

    A refusal before any job is no JSON event; its word is `refused`.

    Raises:
        ConsoleError: it does not hold a beginning and an end.
    """
    stamps: dict[str, float] = {}
    events: list[Mapping[str, Any]] = []
    peaks: list[int] = []
    for line in text.splitlines():
        word, _, rest = line.partition(" ")
        if line.startswith("{"):
            entry = json.loads(line)
            if "event" in entry:
                events.append(entry)
        elif word in ("began", "ended"):
            stamps[word] = float(rest)
        elif line.startswith("VmHWM:"):
            peaks.append(int(line.split()[1]))
    if set(stamps) != {"began", "ended"}:
        raise ConsoleError(f"the swap said {text[-200:]!r}", "Look at the host's journal; then measure again.")
    finished = [event["detail"]["outcome"] for event in events if event["event"] == "job_finished"]
    word = str(finished[-1]) if finished else "refused"
    return Job(Verdict(word, stamps["began"], stamps["ended"]), events, max(peaks) / 1024 if peaks else None)


def first_stamp(text: str, word: str, since: float) -> float | None:
    """The first moment at or after `since` that the server stamped with `word`; None without one."""
    for line in text.splitlines():
        name, _, moment = line.partition(" ")
        if name == word and float(moment) >= since:
            return float(moment)
    return None


def variants() -> dict[str, dict[str, Any]]:
    """Inventory data: the same server with other moments of truth; one lists its models too early, one dies."""

    def variant(name: str, *words: str) -> dict[str, Any]:
        stamps = ["--stamps", stamps_path(name)]
        return {
            "environment": "venv_llamacpp",
            "model": "target",
            "served_model": "smollm2",
            "raw_args": [*words, *stamps],
            "budgets": {"soak_s": SOAK_S},
        }

    found = {HOME: variant(HOME, "--bind-delay-s", str(HOME_S))}
    for index, seconds in enumerate(LOADS_S):
        found[load(index)] = variant(load(index), "--bind-delay-s", str(seconds))
    found[WARMING] = variant(WARMING, "--bind-delay-s", str(HOME_S), "--load-s", str(WARM_S))
    found[DOOMED] = variant(DOOMED, "--bind-delay-s", "3600", "--crash-after", str(CRASH_S))
    return found


def load(index: int) -> str:
    """Name of the variant with the load time number `index`, counted round."""
    return f"load{index % len(LOADS_S)}"


def stamps_path(variant: str) -> str:
    """Where the server of a variant may write on the host: the state folder of its unit."""
    return f"/var/lib/specswap-{SLOT}/{variant}/stamps"


@dataclass
class Sides:
    """Both sides on one host, by variants; remembers which variant's unit was started last."""

    host: Host
    units: Mapping[str, str]
    launcher: str
    current: str = HOME
    peaks_mib: list[float] = field(default_factory=list)

    def loop(self, new: str, old: str | None = None) -> Verdict:
        """The shell loop from the current variant, or `old`, to `new`. Start limits are reset before it begins."""
        old = old or self.current
        self.run(["systemctl", "reset-failed"])
        words = [self.units[old], self.units[new], str(PORT), str(POLLS), str(POLL_S)]
        done = self.host.exec(HOST, ["sh", "-c", LOOP, "loop", *words], timeout_s=POLLS * POLL_S + 60)
        self.current = new
        return parse_loop(done.stdout)

    def swap(self, variant: str, want: str | None = "swapped", watch: bool = True) -> Job:
        """`specswap-host swap`.

        Raises:
            ConsoleError: its outcome is not `want`: the figures would not be about what their row says. Where the
                outcome itself is measured, `want` is None.
        """
        words = [variant, SLOT, "watch" if watch else "-"]
        done = self.host.exec(HOST, ["sh", "-c", SWAP, "swap", *words], timeout_s=120)
        job = parse_swap(done.stdout)
        if want is not None and job.verdict.word != want:
            raise ConsoleError(
                f"swap to {variant} ended as {job.verdict.word}, not as {want}", (done.stdout + done.stderr)[-600:]
            )
        if job.peak_mib is not None:
            self.peaks_mib.append(job.peak_mib)
        if job.verdict.word == "swapped":
            self.current = variant
        return job

    def stamp(self, variant: str, word: str, since: float) -> float | None:
        """See `first_stamp`, for the server of a variant."""
        return first_stamp(self.host.exec(HOST, ["cat", stamps_path(variant)]).stdout, word, since)

    def truth(self, variant: str, word: str, since: float) -> float:
        """The same for what must have happened; raises ConsoleError when the server does not say so."""
        moment = self.stamp(variant, word, since)
        if moment is None:
            raise ConsoleError(f"the server of {variant} has not stamped {word}", f"Look at {stamps_path(variant)}.")
        return moment

    def lie(self, variant: str, since: float, at: float | None) -> bool:
        """Whether `healthy` at the moment `at` was not true of the variant that was started after `since`."""
        ready = self.stamp(variant, "ready", since)
        return at is not None and (ready is None or ready > at)

    def journal(self) -> list[dict[str, Any]]:
        """All events of the slot's journal."""
        text = self.run(["cat", f"/var/lib/specswap/{SLOT}/journal.jsonl"])
        return [json.loads(line) for line in text.splitlines()]

    def run(self, argv: Sequence[str], timeout_s: float = 60.0) -> str:
        """Standard output of a command that must succeed; raises ConsoleError with its last words."""
        done = self.host.exec(HOST, argv, timeout_s=timeout_s)
        if done.returncode != 0:
            words = (done.stderr.strip() or done.stdout.strip())[-300:]
            raise ConsoleError(f"{shlex.join(argv)[:120]} failed on {HOST}: {words}", "Measure again.")
        return done.stdout


def run(paths: Paths, say: Callable[[str], None]) -> list[Row]:
    """Takes all samples on a sandbox host of its own; about ten minutes."""
    with _host(paths, say) as (sides, play):
        rows = [
            *good_swaps(sides, say),
            *crashes(sides, say),
            *stale_servers(sides, say),
            *warming_servers(sides, say),
            *no_ops(sides, say),
            *plays(sides, play, say),
        ]
        rows.append(Row("memory of the job, peak resident", "MiB", sides.peaks_mib, "max <= 30"))
    return rows


# --- the rows


def good_swaps(sides: Sides, say: Callable[[str], None]) -> list[Row]:
    """Delays from the moment at which the server began to listen."""
    loop, proven, committed, early = [], [], [], 0

    def by_loop(variant: str) -> None:
        nonlocal early
        verdict = sides.loop(variant)
        if verdict.word != "healthy":
            raise ConsoleError(f"the shell loop said {verdict.word} of a good server", "Measure again.")
        ready = sides.stamp(variant, "ready", verdict.began)
        if ready is None:
            early += 1
        else:
            loop.append(verdict.at - ready)

    def by_swap(variant: str) -> None:
        job = sides.swap(variant)
        ready = sides.truth(variant, "ready", job.verdict.began)
        proof = job.when("tier_passed", 4)
        assert proof is not None, "a swap that ended as swapped has passed tier 4"
        proven.append(proof - ready)
        committed.append(job.verdict.at - ready)

    for index in range(REPEATS):
        turns: list[tuple[Callable[[str], None], str]] = [(by_loop, load(index)), (by_swap, load(index + 2))]
        for turn, variant in turns if index % 2 == 0 else reversed(turns):
            turn(variant)
        theirs = f"{loop[-1]:.2f} s" if loop else "too early"
        say(f"good swap {index + 1} of {REPEATS}: proven {proven[-1]:.2f} s after readiness, {PEER} {theirs}")
    if early:
        say(f"{PEER} said healthy {early} times before the server was")
    return [
        Row("good swap: readiness to proof (tier 4)", "s", proven, "median <= 0.3", PEER, loop),
        Row(f"good swap: readiness to the end of the command (soak of {SOAK_S:g} s included)", "s", committed),
    ]


def crashes(sides: Sides, say: Callable[[str], None]) -> list[Row]:
    """Delays from the end of a server that dies `CRASH_S` after its start."""
    sides.swap(HOME)
    noticed, back = [], []
    for index in range(REPEATS):
        job = sides.swap(DOOMED, want=None)
        exit_at = sides.truth(DOOMED, "exit", job.verdict.began)
        verdict, served = job.when("crashed"), job.when("rolled_back")
        if verdict is not None:
            noticed.append(verdict - exit_at)
        if served is not None:
            back.append(served - exit_at)
        say(f"crash {index + 1} of {REPEATS}: " + (f"{noticed[-1]:.2f} s" if verdict is not None else "no verdict"))
    say(f"crash: {REPEATS} shell loops at once, up to {POLLS * POLL_S:g} s")
    sides.run(["systemctl", "stop", sides.units[HOME]])
    words = [sides.units[DOOMED], DOOMED, str(REPEATS), LOOP, str(PORT), str(POLLS), str(POLL_S), UNITS]
    text = sides.run(["sh", "-c", LANES, "lanes", *words], timeout_s=POLLS * POLL_S + 120)
    loop, verdicts = [], [parse_loop(lane.partition("\n")[2]) for lane in text.split("lane ")[1:]]
    for lane, verdict_of_loop in enumerate(verdicts, 1):
        if verdict_of_loop.word == "failed":
            loop.append(verdict_of_loop.at - sides.truth(f"lane{lane}", "exit", verdict_of_loop.began))
    say(f"crash: {len(loop)} of {len(verdicts)} shell loops noticed it")
    sides.current = HOME
    sides.swap(HOME)
    return [
        Row("crash: exit to verdict", "s", noticed, "max <= 1", PEER, loop),
        Row(
            f"crash: share with a verdict, {REPEATS} attempts each",
            "share",
            [len(noticed) / REPEATS],
            "median >= 1",
            PEER,
            [len(loop) / len(verdicts)],
        ),
        Row("crash: exit until the old variant serves again, proven", "s", back),
    ]


def stale_servers(sides: Sides, say: Callable[[str], None]) -> list[Row]:
    """Another process answers on the slot's port: how often is the wanted variant called healthy that never was?"""
    sides.run(["systemctl", "stop", sides.units[HOME]])
    server = ["python3", sides.launcher, "--port", str(PORT), "--alias", "stale"]
    sides.run(["systemd-run", "--quiet", f"--unit={STALE}", *server])
    probe = f"curl -s --retry 40 --retry-delay 1 --retry-connrefused http://127.0.0.1:{PORT}/v1/models | grep -q stale"
    sides.run(["sh", "-c", probe])
    wanted, loop, ours = load(0), [], []
    for _ in range(REPEATS):
        verdict = sides.loop(wanted, old=HOME)
        sides.run(["systemctl", "stop", sides.units[wanted]])
        loop.append(verdict.word == "healthy" and sides.lie(wanted, verdict.began, verdict.at))
        job = sides.swap(wanted, want=None, watch=False)
        ours.append(sides.lie(wanted, job.verdict.began, job.healthy_at()))
    say(f"stale server: false healthy {sum(ours)} of {REPEATS}, {PEER} {sum(loop)} of {REPEATS}")
    sides.run(["systemctl", "stop", STALE])
    sides.current = HOME
    sides.swap(HOME)
    return [_lies("stale server", ours, loop)]


def warming_servers(sides: Sides, say: Callable[[str], None]) -> list[Row]:
    """A server that lists its models `WARM_S` before it is ready, as SGLang does while it warms up."""
    loop, ours = [], []
    for _ in range(WARMINGS):
        verdict = sides.loop(WARMING)
        loop.append(verdict.word == "healthy" and sides.lie(WARMING, verdict.began, verdict.at))
        sides.swap(HOME)
        job = sides.swap(WARMING)
        ours.append(sides.lie(WARMING, job.verdict.began, job.healthy_at()))
        sides.swap(HOME)
    say(f"warming server: false healthy {sum(ours)} of {WARMINGS}, {PEER} {sum(loop)} of {WARMINGS}")
    return [_lies("warming server", ours, loop)]


def _lies(what: str, ours: Sequence[bool], loop: Sequence[bool]) -> Row:
    name = f"{what}: share of false healthy, {len(ours)} attempts each"
    return Row(name, "share", [sum(ours) / len(ours)], "max <= 0", PEER, [sum(loop) / len(loop)])


def no_ops(sides: Sides, say: Callable[[str], None]) -> list[Row]:
    """The wanted variant serves already: seconds of the whole command on the host."""
    ours, loop = [], []
    for _ in range(REPEATS):
        ours.append(sides.swap(HOME, want="noop", watch=False).verdict.seconds)
        loop.append(sides.loop(HOME).seconds)
    say(f"no-op: {min(ours):.2f} to {max(ours):.2f} s, {PEER} {min(loop):.2f} to {max(loop):.2f} s")
    return [Row("no-op: seconds on the host", "s", ours, "median <= 0.5", PEER, loop)]


def plays(sides: Sides, play: Callable[[str], float], say: Callable[[str], None]) -> list[Row]:
    """The same through `swap.yml`: what the controller adds until the operator knows."""

    def timed(variant: str) -> tuple[float, float, Job]:
        began = time.time()
        seen = len(sides.journal())
        ended = play(variant)
        events = sides.journal()[seen:]
        outcomes = [event["detail"]["outcome"] for event in events if event["event"] == "job_finished"]
        return began, ended, Job(Verdict(outcomes[-1] if outcomes else "none", began, ended), events)

    proven, told, crashed, noop_host, noop_play = [], [], [], [], []
    for index in range(PLAYS):
        began, ended, job = timed(load(index))
        ready, proof = sides.truth(load(index), "ready", began), job.when("tier_passed", 4)
        if proof is not None:
            proven.append(proof - ready)
        told.append(ended - ready)
        began, ended, job = timed(load(index))
        if job.verdict.word != "noop":
            raise ConsoleError(f"swap.yml to the active variant ended as {job.verdict.word}", "Measure again.")
        noop_play.append(ended - began)
        noop_host.append(float(job.events[-1]["detail"]["seconds"]))
        began, ended, job = timed(DOOMED)
        verdict = job.when("crashed")
        if verdict is not None:
            crashed.append(verdict - sides.truth(DOOMED, "exit", began))
        say(f"swap.yml {index + 1} of {PLAYS}: ended {told[-1]:.1f} s after readiness, no-op {noop_play[-1]:.1f} s")
    return [
        Row("swap.yml, good swap: readiness to proof (tier 4)", "s", proven, "median <= 0.3"),
        Row("swap.yml, good swap: readiness to the end of the play (soak included)", "s", told),
        Row("swap.yml, crash: exit to verdict", "s", crashed, "max <= 1"),
        Row("swap.yml, no-op: the job's seconds on the host", "s", noop_host, "median <= 0.5"),
        Row("swap.yml, no-op: the whole play", "s", noop_play),
    ]


# --- the host


@contextmanager
def _host(paths: Paths, say: Callable[[str], None]) -> Iterator[tuple[Sides, Callable[[str], float]]]:
    """A sandbox host, provisioned by `site.yml` from a clone whose engine is the double; all goes at the end.

    Yields both sides, and a function that plays `swap.yml` to a variant and returns the Unix seconds of its end.
    """
    from specswap_sandbox import Sandbox

    sandbox = Sandbox(state=STATE, tag=TAG)
    sandbox.down()  # what a killed run left
    folder = Path(tempfile.mkdtemp(prefix="specswap-measure-"))
    try:
        clone = _clone(paths, folder, say)
        inventory = folder / "inventory"
        write_inventory(inventory)
        sandbox.up([HOST], progress=say)
        sandbox.wait(timeout_s=90.0)
        inventories = [paths.root / "inventory", sandbox.inventory, inventory]
        supplies.fetch(paths, inventories, say, hosts=[HOST])
        player = Player(clone)

        def play(playbook: str, variables: Mapping[str, str] | None = None) -> tuple[bool, Path]:
            result = player(playbook, inventories=inventories, limit=HOST, variables=variables)
            return result.ok, result.log

        ok, log = play("site.yml")
        if not ok:
            lines = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
            raise ConsoleError("site.yml failed on the host of the measure", lines)
        say("the host is provisioned")

        def swap_play(variant: str) -> float:
            play("swap.yml", {"variant": variant})
            return time.time()

        yield make_sides(sandbox), swap_play
    finally:
        sandbox.down()
        shutil.rmtree(folder, ignore_errors=True)


def _clone(paths: Paths, folder: Path, say: Callable[[str], None]) -> Paths:
    """A clone in which the launcher of engine llamacpp is the double; wheels are those of the original."""
    clone = folder / "clone"
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", str(paths.root), str(clone)], check=True)
    git = ["git", "-C", str(paths.root)]
    commit = subprocess.run([*git, "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=True)
    say(f"measured is commit {commit.stdout.strip()}; what is not committed is no part of it")
    shutil.copyfile(clone / "tests/doubles/openai_double.py", clone / "engines/llamacpp/serve.py")
    (clone / ".specswap").mkdir()
    (paths.work / "wheelhouse").mkdir(parents=True, exist_ok=True)
    (clone / ".specswap" / "wheelhouse").symlink_to(paths.work / "wheelhouse")
    return Paths(clone)


def write_inventory(folder: Path) -> None:
    """The measure's variants for its host, over the example's environments and models; JSON is YAML."""
    (folder / "host_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text(json.dumps({"embedded": {"hosts": {HOST: None}}}), encoding="utf-8")
    slot = {"port": PORT, "bind": "127.0.0.1", "gpus": [], "variant": HOME}
    data = {"specswap_slots": {SLOT: slot}, "specswap_variants": variants()}
    (folder / "host_vars" / f"{HOST}.yml").write_text(json.dumps(data, indent=1), encoding="utf-8")


def make_sides(host: Host) -> Sides:
    """Units and launcher as the host's own registry names them."""
    text = host.exec(HOST, ["cat", f"/etc/specswap/slots/{SLOT}.json"]).stdout
    entries = json.loads(text)["services"]
    services = list(entries.values()) if isinstance(entries, dict) else list(entries)
    return Sides(host, {one["variant"]: one["unit"] for one in services}, services[0]["launcher"]["path"])
