"""One real systemd host with the toolkit and a slot of doubles, and the commands that the faults give on it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from specswap_host import toolkit
from specswap_sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.specswap.core.plugins.plugin_utils import render, resolve  # noqa: E402

HERE = Path(__file__).resolve().parent
NAME = "h1"
SLOT, PORT = "smoke", 30001
STATE_DIR = f"/var/lib/specswap/{SLOT}"
HOOK = "/run/specswap-fault.json"
MODEL_TEXT = "weights of a double"
PYTHON = "/usr/bin/python3"
#: What plays and plans do not need.
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", ".specswap", "results", "__pycache__", ".*_cache", "build", "dist")
#: Seconds, short enough that a fault takes a few and long enough for a busy machine.
BUDGETS = {"load_s": 12, "stall_s": 6, "drain_s": 1, "stop_s": 1, "handover_s": 2, "gate_s": 5, "soak_s": 0.4}
#: What a command that was refused must have left as it was.
TOUCHABLE = (
    "/etc/systemd/system/llamacpp-*",
    "/etc/systemd/system/*.wants/llamacpp-*",
    "/etc/specswap/slots/*",
    f"{STATE_DIR}/state.json",
)
EXIT_CODES = {"swapped": 0, "noop": 0, "compared": 0, "usage": 2, "rolled_back": 3, "rollback_failed": 4, "refused": 5}
EXIT_CODES.update(interrupted=6, compare_failed=7)
OUTCOMES = {2: "usage", 5: "refused", 6: "interrupted"}


@dataclass(frozen=True)
class Told:
    """What a command said: outcome in the words of the contract, exit code, events of its job, all its text."""

    outcome: str
    exit_code: int
    text: str
    events: Sequence[Mapping[str, Any]]
    seconds: float

    @property
    def finished(self) -> Mapping[str, Any]:
        """The detail of `job_finished`, empty when the command did not see it."""
        ends = [event["detail"] for event in self.events if event["event"] == "job_finished"]
        return ends[-1] if ends else {}

    @property
    def cause(self) -> str:
        """Why, as the operator reads it."""
        return str(self.finished.get("cause") or self.text)


@dataclass
class Truth:
    """What `on_host/truth.py` saw."""

    data: dict[str, Any]
    unit_of: Mapping[str, str]

    def unit(self, variant: str, key: str) -> str:
        return str(self.data["units"][self.unit_of[variant]].get(key, ""))

    @property
    def active(self) -> list[str]:
        """Variants whose unit is not at rest."""
        return [v for v in self.unit_of if self.unit(v, "ActiveState") not in ("inactive", "failed")]

    @property
    def answers(self) -> str | None:
        """The variant by whose identity the port answers."""
        by: str | None = self.data["answer"]["by"]
        return by

    @property
    def events(self) -> list[dict[str, Any]]:
        """The journal, read without our code."""
        found = []
        for line in (self.data["journal"] or "").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
        return [event for event in found if isinstance(event, dict)]

    def words(self) -> str:
        """The host in one line, for the table."""
        units = ", ".join(
            f"{variant} {self.unit(variant, 'ActiveState')}/{self.unit(variant, 'UnitFileState') or 'no file'}"
            for variant in self.unit_of
            if self.unit(variant, "ActiveState") != "inactive" or self.unit(variant, "UnitFileState") == "enabled"
        )
        owners = sorted({one["unit"] or f"pid {one['pid']}" for one in self.data["listeners"]})
        by = self.answers or (f"{self.data['answer']['names']}" if self.data["answer"]["names"] else "nobody")
        committed = ((self.data["state"] or {}).get("active") or {}).get("service", {}).get("variant")
        port = ", ".join(owners) or "free"
        return f"units: {units or 'none active'}; port: {port}; answers: {by}; committed: {committed or 'nothing'}"


@dataclass
class FaultHost:
    """The host; `prepare` starts every fault from variant `a`, proven and committed."""

    sandbox: Sandbox
    work: Path
    services: dict[str, dict[str, Any]] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    tree: str = ""
    _installed: set[str] = field(default_factory=set)

    # --- commands on the host

    def run(self, *argv: str, timeout_s: float = 60.0, stdin: str | None = None) -> str:
        """Standard output of a command that must succeed, as root."""
        done = self.sandbox.exec(NAME, argv, timeout_s=timeout_s, stdin=stdin)
        assert done.returncode == 0, f"{' '.join(argv)[:200]}: rc {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def sh(self, script: str, timeout_s: float = 60.0) -> str:
        return self.run("sh", "-ec", script, timeout_s=timeout_s)

    def python(self, file: str, spec: Mapping[str, Any]) -> str:
        """Run a script of `on_host` with `spec` as JSON on its stdin."""
        return self.run("python3", "-c", (HERE / "on_host" / file).read_text(), stdin=json.dumps(spec))

    def specswap(self, *words: str, timeout_s: float = 120.0, stdin: str | None = None) -> Told:
        """`specswap-host` with `words`; JSON events are read out of what it prints."""
        began = time.monotonic()
        done = self.sandbox.exec(NAME, ["specswap-host", *words], timeout_s=timeout_s, stdin=stdin)
        return told(done.stdout, done.stderr, done.returncode, time.monotonic() - began)

    def swap(self, variant: str, *options: str) -> Told:
        return self.specswap("swap", variant, "--json", *options)

    def later(self, call: Any) -> Later:
        """Do `call` on a thread, as another operator would at the same time."""
        return Later(call)

    def hook(self, **spec: Any) -> None:
        """Arm the hook in the next job; see `on_host/hook.py`."""
        self.run("sh", "-c", f"cat >{HOOK}", stdin=json.dumps({"command": "run", "do": "kill", **spec}))

    def unhook(self) -> None:
        self.run("rm", "-f", HOOK)

    def wait_event(self, event: str, tier: int | None = None, timeout_s: float = 20.0, count: int = 1) -> None:
        """Until the journal holds an event (`count` times)."""

        def there() -> bool:
            lines = self.sandbox.exec(NAME, ["cat", f"{STATE_DIR}/journal.jsonl"]).stdout.splitlines()
            events = [json.loads(line) for line in lines if line.endswith("}")]
            return sum(e["event"] == event and tier in (None, e["tier"]) for e in events) >= count

        self.wait(there, f"event {event}", timeout_s)

    def wait(self, true: Any, what: str, timeout_s: float = 20.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not true():
            assert time.monotonic() < deadline, f"{what}: not within {timeout_s:g} s"
            time.sleep(0.03)

    def reboot(self) -> None:
        """A power loss, and the boot after it."""
        self.sandbox.crash(NAME)
        self.sandbox.start(NAME)

        def up() -> bool:
            try:
                word = self.sandbox.exec(NAME, ["systemctl", "is-system-running"], timeout_s=5).stdout.strip()
            except Exception:
                return False
            return word in ("running", "degraded")

        self.wait(up, "boot", 40.0)

    def foreigner(self, *options: str, port: int = PORT, unit: str = "fault-foreigner") -> None:
        """A server that is not ours takes the port, and answers before this returns."""
        server = [PYTHON, self.services["a"]["launcher"]["path"], "--port", str(port), *options]
        self.run("systemd-run", "--quiet", "--collect", f"--unit={unit}", *server)
        bind = options[options.index("--host") + 1] if "--host" in options else "127.0.0.1"
        address = f"[{bind}]" if ":" in bind else bind
        probe = f"curl -g -s -m 1 http://{address}:{port}/v1/models | grep -q object"
        self.wait(lambda: self.sandbox.exec(NAME, ["sh", "-c", probe]).returncode == 0, "the foreigner")

    def job_pid(self) -> str:
        """The main process of the slot's job, `1` when there is none."""
        pid = self.run("systemctl", "show", "--value", "-p", "MainPID", f"specswap-job-{SLOT}").strip()
        return pid if pid != "0" else "1"

    def unit(self, variant: str) -> str:
        return str(self.services[variant]["unit"])

    def drop_in(self, variant: str, text: str, name: str = "50-operator") -> None:
        """A drop-in by the operator's hand."""
        folder = f"/etc/systemd/system/{self.unit(variant)}.d"
        self.run("sh", "-c", f"mkdir -p {folder} && cat >{folder}/{name}.conf && systemctl daemon-reload", stdin=text)

    # --- before and after a fault

    @property
    def project(self) -> Path:
        """A copy of the project whose engine `llamacpp` is the double: a launcher is named after its content."""
        return self.work / "project"

    def install(self) -> None:
        """The toolkit, its door, the services' user, and the hook that only this host has."""
        if not self.project.exists():
            shutil.copytree(ROOT, self.project, symlinks=True, ignore=LEFT_OUT)
            shutil.copyfile(ROOT / "tests/doubles/openai_double.py", self.project / "engines/llamacpp/serve.py")
        payload = toolkit.build_payload(ROOT)
        self.tree = f"/opt/specswap/lib/{payload['trees']['lib']}"
        archive = self.work / "toolkit.b64"
        archive.write_text(payload["payload_b64"])
        self.run("sh", "-ec", "mkdir -p /run/unpack && base64 -d | tar -xz -C /run/unpack", stdin=archive.read_text())
        door = toolkit.DOOR.format(lib="/opt/specswap/lib")
        self.sh(
            f"mkdir -p {self.tree} && cp -r /run/unpack/lib/. {self.tree}/ && rm -r /run/unpack\n"
            f"python3 -m compileall -q {self.tree}\n"
            f"ln -sfn {Path(self.tree).name} /opt/specswap/lib/current\n"
            "id specswap >/dev/null 2>&1 || useradd --system --shell /usr/sbin/nologin specswap\n"
        )
        self.run("sh", "-c", f"cat >{self.tree}/sitecustomize.py", stdin=(HERE / "on_host/hook.py").read_text())
        self.run("sh", "-c", "cat >/usr/local/bin/specswap-host && chmod 755 /usr/local/bin/specswap-host", stdin=door)

    def prepare(
        self,
        server: Sequence[str] = (),
        server_a: Sequence[str] = (),
        budgets: Mapping[str, float] | None = None,
        start: bool = True,
    ) -> Truth:
        """Heal the host, lay out variants a, b (with the options `server`) and c, and let `a` be proven serving."""
        self.data = inventory_data(server, server_a, budgets or {})
        found = [render.with_unit_text(service) for service in resolve.services(self.data, self.project)]
        self.services = {service["variant"]: service for service in found}
        self.python("reset.py", self._layout())
        if start:
            said = self.swap("a")
            assert said.outcome == "swapped", f"variant a could not be proven: {said.text[-1500:]}"
        truth = self.truth()
        assert truth.answers == ("a" if start else None), truth.words()
        return truth

    def _layout(self) -> dict[str, Any]:
        one = self.services["a"]
        model = one["models"]["target"]
        # A release of one link, with the manifest and the stamp that its build would have left.
        manifest = f"{hashlib.sha256(PYTHON.encode()).hexdigest()} {len(PYTHON)} 0 bin/python\n"
        stamp = {"schema": 1, "release": one["release"], "lock_sha256": "", "python": "3"}
        stamp["files_sha256"] = hashlib.sha256(manifest.encode()).hexdigest()
        files = {
            f"{one['release_path']}/specswap-release.json": json.dumps(stamp),
            f"{one['release_path']}/specswap-files.txt": manifest,
            model["path"]: MODEL_TEXT,
            f"{Path(model['path']).parent}/specswap-model.json": json.dumps({"sha256": model["sha256"]}),
            one["launcher"]["path"]: (self.project / "engines/llamacpp/serve.py").read_text(),
        }
        if one["argv"][0] not in self._installed:
            self.run("sh", "-ec", f"mkdir -p {Path(one['argv'][0]).parent}; ln -sfn {PYTHON} {one['argv'][0]}")
            self._installed.add(one["argv"][0])
        return {
            "units": {service["unit"]: service["unit_text"] for service in self.services.values()},
            "registry": {"schema": 1, "slot": SLOT, "wanted": "a", "services": self.services},
            "files": files,
        }

    def truth(self) -> Truth:
        spec = {
            "units": [service["unit"] for service in self.services.values()],
            "port": PORT,
            "identities": {variant: service["identity"] for variant, service in self.services.items()},
            "files": list(TOUCHABLE),
        }
        data = json.loads(self.python("truth.py", spec))
        return Truth(data, {variant: service["unit"] for variant, service in self.services.items()})

    def plan(self, variant: str, job: str, **changes: Any) -> str:
        """A swap plan as a controller would send it, JSON."""
        controller = {"user": "ops", "host": "laptop", "command": "the fault suite"}
        plan = {"schema": 1, "kind": "swap", "job": job, "slot": SLOT, "service": self.services[variant]}
        return json.dumps({**plan, "controller": controller, **changes})

    # --- the real plays

    def play(self, variant: str) -> Playbook:
        """`ansible-playbook swap.yml` as its own process group; the host's variants are those of this fault."""
        folder = self.work / "inventory"
        shutil.rmtree(folder, ignore_errors=True)
        (folder / "host_vars").mkdir(parents=True)
        (folder / "hosts.yml").write_text(json.dumps({"embedded": {"hosts": {NAME: None}}}))
        variables = {f"specswap_{key}": value for key, value in self.data.items()}
        (folder / "host_vars" / f"{NAME}.yml").write_text(json.dumps(variables))
        inventories = [self.project / "inventory", self.sandbox.inventory, folder]
        argv = [str(Path(sys.executable).parent / "ansible-playbook"), "swap.yml", "-l", NAME]
        argv += ["-e", f"variant={variant}"]
        argv += [word for path in inventories for word in ("-i", str(path))]
        return Playbook(argv, self.project, self.work / "play.log")


class Later:
    """A call on a thread of its own."""

    def __init__(self, call: Any) -> None:
        self._result: list[Any] = []
        self._error: list[BaseException] = []

        def work() -> None:
            try:
                self._result.append(call())
            except BaseException as error:
                self._error.append(error)

        self._thread = threading.Thread(target=work, daemon=True)
        self._thread.start()

    def result(self, timeout_s: float = 90.0) -> Any:
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), f"the other command did not end within {timeout_s:g} s"
        if self._error:
            raise self._error[0]
        return self._result[0]


class Playbook:
    """A running `ansible-playbook`."""

    def __init__(self, argv: Sequence[str], root: Path, log: Path) -> None:
        self.log = log
        environment = {
            **os.environ,
            "ANSIBLE_CONFIG": str(root / "ansible.cfg"),
            "ANSIBLE_HOST_KEY_CHECKING": "True",
            "ANSIBLE_NOCOLOR": "1",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }
        self._began = time.monotonic()
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                argv,
                cwd=root,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def kill(self) -> None:
        """The controller is gone with all it started: SIGKILL to its session."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(10)

    def result(self, timeout_s: float = 120.0) -> tuple[int, str, float]:
        """Exit code, output, seconds."""
        code = self.process.wait(timeout_s)
        return code, self.log.read_text(errors="replace"), time.monotonic() - self._began


def told(out: str, err: str, code: int, seconds: float) -> Told:
    """Read what `specswap-host` printed."""
    events = []
    for line in out.splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            if "event" in entry:
                events.append(entry)
    ends = [event["detail"]["outcome"] for event in events if event["event"] == "job_finished"]
    outcome = str(ends[-1]) if ends else OUTCOMES.get(code, f"exit code {code}")
    return Told(outcome, code, f"{out}\n{err}".strip(), events, seconds)


def inventory_data(server: Sequence[str], server_a: Sequence[str], budgets: Mapping[str, float]) -> dict[str, Any]:
    """Inventory data of the slot; budgets of a fault hold for `b` alone."""
    digest = hashlib.sha256(MODEL_TEXT.encode()).hexdigest()
    model = {"source": "path", "path": "/srv/model.gguf", "sha256": digest, "size": len(MODEL_TEXT)}
    base = {"environment": "venv_llamacpp", "model": "target", "served_model": "double"}
    return {
        "slots": {SLOT: {"port": PORT, "bind": "127.0.0.1", "gpus": [], "variant": "a", "budgets": dict(BUDGETS)}},
        "environments": {"venv_llamacpp": {"engine": "llamacpp", "python": "3.11", "cuda": "none"}},
        "models": {"target": model},
        "gate": {"canary_s": 4, "floor_s": 4},
        "variants": {
            "a": {**base, "raw_args": list(server_a)},
            "b": {**base, "raw_args": list(server), "budgets": dict(budgets)},
            "c": {**base, "raw_args": []},
        },
    }


def job_of(text: str) -> str:
    """The job id in a text."""
    found = re.search(r"\d{8}T\d{6}Z-[0-9a-f]{6}", text)
    assert found, text
    return found.group()
