"""Two real hosts (systemd, SSH) and the plays that run on them, through ansible-runner as a controller would.

The tests of this folder run in the order of their file names: a host is provisioned once and then lived with, as an
operator would. `ct200` is the host of the story; `ct201` stays bare until the test for two hosts.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner
import pytest
import yaml
from specswap_sandbox import Sandbox

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ["ct200", "ct201"]


@dataclass
class PlayResult:
    """What one `ansible-playbook` said: its exit code, text, per-host statistics and events."""

    rc: int
    text: str
    stats: dict[str, dict[str, int]]
    events: list[dict[str, Any]] = field(repr=False)

    def count(self, key: str, host: str = "ct200") -> int:
        """The recap's figure `key` (`ok`, `changed`, `failures`, `dark`) for one host."""
        return int(self.stats.get(key, {}).get(host, 0))

    def task_results(self, fragment: str, host: str = "ct200") -> list[dict[str, Any]]:
        """Results of the tasks whose name contains `fragment`, in order."""
        found = []
        for event in self.events:
            data = event.get("event_data", {})
            if data.get("host") == host and fragment in str(data.get("task", "")) and "res" in data:
                found.append(data["res"])
        return found

    def ok(self) -> PlayResult:
        assert self.rc == 0, self.text
        return self


class Hosts:
    """The sandbox together with the commands that the tests give."""

    def __init__(self, sandbox: Sandbox, work: Path) -> None:
        self.sandbox = sandbox
        self.work = work
        self.extra_inventory = work / "inventory"
        self._runs = 0

    def play(self, playbook: str, *, limit: str = "ct200", options: str = "", **extra: Any) -> PlayResult:
        """Run a playbook of the project on sandbox hosts; `extra` are extra variables."""
        self._runs += 1
        private = self.work / f"run-{self._runs:03d}"
        private.mkdir()
        run = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(ROOT),
            playbook=playbook,
            inventory=[str(ROOT / "inventory"), str(self.sandbox.inventory), str(self.extra_inventory)],
            limit=limit,
            extravars=extra or None,
            cmdline=options or None,
            envvars={
                "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
                # ansible-runner turns this off where nobody asked for it.
                "ANSIBLE_HOST_KEY_CHECKING": "True",
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            },
            quiet=True,
            timeout=900,
        )
        text = run.stdout.read()
        return PlayResult(rc=run.rc, text=text, stats=run.stats or {}, events=list(run.events))

    def run(self, argv: list[str], host: str = "ct200", timeout_s: float = 60) -> str:
        """Standard output of a command that must succeed, as root inside the host."""
        done = self.sandbox.exec(host, argv, timeout_s=timeout_s)
        assert done.returncode == 0, f"{argv}: rc {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def status(self, host: str = "ct200") -> dict[str, Any]:
        """`specswap-host status --json` of the only slot."""
        answer = json.loads(self.run(["specswap-host", "status", "--json"], host))
        return dict(answer)

    def show(self, unit: str, prop: str, host: str = "ct200") -> str:
        """One property of a unit, as systemd says it."""
        return self.run(["systemctl", "show", "--value", "-p", prop, unit], host).strip()

    def active_units(self, host: str = "ct200") -> list[str]:
        """Units of ours that run."""
        text = self.run(["systemctl", "list-units", "--plain", "--no-legend", "--state=active", "llamacpp-*"], host)
        return sorted(line.split()[0] for line in text.splitlines() if line.strip())


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    if os.geteuid() != 0:
        pytest.skip("sandbox hosts need root")
    # Two runs at once need different tags: the first thing that a run does is to clear its own away.
    tag = os.environ.get("SPECSWAP_TEST_TAG", "sst")
    sandbox = Sandbox(state=Path(f"/run/specswap-test-{tag}"), tag=tag, net="auto")
    sandbox.down()  # what a killed run left
    work = tmp_path_factory.mktemp("plays")
    try:
        sandbox.up(HOSTS, progress=print)
        sandbox.wait(timeout_s=120)
        made = Hosts(sandbox, work)
        write_inventory(made.extra_inventory)
        yield made
    finally:
        if not os.environ.get("SPECSWAP_TEST_KEEP"):
            sandbox.down()
        shutil.rmtree(work, ignore_errors=True)


def write_inventory(folder: Path) -> None:
    """The example's variants plus three that cannot serve, each for a reason of its own."""
    example = yaml.safe_load((ROOT / "inventory/group_vars/embedded.yml").read_text())
    variants = dict(example["specswap_variants"])
    # Passes every check that reads, and dies in the launcher's own argument parser.
    variants["bad_flag"] = {"extends": "baseline", "raw_args": ["--no-such-flag"]}
    # Loads, then asks for more memory than any machine has.
    variants["bad_env"] = {"extends": "baseline", "env": {"PYTHONHOME": "/nonexistent"}}
    (folder / "host_vars").mkdir(parents=True)
    (folder / "hosts.yml").write_text(yaml.safe_dump({"embedded": {"hosts": dict.fromkeys(HOSTS)}}))
    for name in HOSTS:
        (folder / "host_vars" / f"{name}.yml").write_text(yaml.safe_dump({"specswap_variants": variants}))


@pytest.fixture(scope="session")
def provisioned(hosts: Hosts) -> Hosts:
    """ct200 after `site.yml`; the result of that run is kept on the object for the first test."""
    hosts.first_site = hosts.play("site.yml").ok()  # type: ignore[attr-defined]
    return hosts


Play = Callable[..., PlayResult]
