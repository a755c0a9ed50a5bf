"""Plays through the real ansible-runner on this machine, without any connection."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from specswap.errors import ConsoleError
from specswap.paths import Paths
from specswap.plays import LONGEST_TEXT, Cancel, EventLines, Player, inventory_variables

PLAY = """\
- name: A play
  hosts: h1
  gather_facts: false
  tasks:
    - name: Says it
      ansible.builtin.debug:
        msg: "slow={{ slow }} list={{ arms | type_debug }}"
    - name: Changes something
      ansible.builtin.command: "{{ 'sleep 60' if slow | bool else 'true' }}"
      changed_when: true
    - name: Left out
      ansible.builtin.debug:
        msg: never
      when: false
    - name: Breaks
      ansible.builtin.fail:
        msg: "first line\\nsecond line"
      when: broken | default(false) | bool
"""


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "play.yml").write_text(PLAY)
    (tmp_path / "ansible.cfg").write_text("[defaults]\nnocows = True\n")
    host = "{ansible_connection: local, ansible_python_interpreter: '{{ ansible_playbook_python }}', number: 7}"
    (tmp_path / "hosts.yml").write_text(f"all: {{hosts: {{h1: {host}}}}}\n")
    return Paths(tmp_path)


def play(paths: Paths, said: list[str], **variables: object):  # type: ignore[no-untyped-def]
    extra = {"slow": False, "arms": ["a"], **variables}
    return Player(paths)("play.yml", inventories=[paths.root / "hosts.yml"], variables=extra, say=said.append)


def test_good_play_counts_and_reads_well(paths: Paths) -> None:
    said: list[str] = []
    result = play(paths, said)
    assert result.ok and result.rc == 0
    assert result.changed == 1
    assert result.tasks == 2, "skipped tasks do not count"
    assert said == [
        "- Says it",
        "  h1: slow=False list=list",
        "- Changes something",
        "  h1: changed",
        "- Left out",
        "- Breaks",
        "h1: ok=2, changed=1, failed=0, unreachable=0, skipped=2",
    ]
    assert "PLAY RECAP" in result.log.read_text()


def test_failed_play_is_a_result_with_its_message(paths: Paths) -> None:
    said: list[str] = []
    result = play(paths, said, broken=True)
    assert not result.ok and result.rc != 0
    at = said.index("  h1: FAILED")
    assert said[at + 1 : at + 3] == ["    first line", "    second line"]


def test_play_that_does_not_parse_says_why(paths: Paths) -> None:
    (paths.root / "play.yml").write_text("- hosts: [\n")
    said: list[str] = []
    assert not play(paths, said).ok
    assert any("YAML" in line or "yaml" in line for line in said), said


def test_missing_inventory_is_refused(paths: Paths) -> None:
    with pytest.raises(ConsoleError, match=r"inventory .* is missing"):
        Player(paths)("play.yml", inventories=[paths.root / "none.yml"])


def running(mark: str) -> list[str]:
    """Command lines of this machine that hold a mark."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found.append(path.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return [line for line in found if mark in line]


def test_ctrl_c_ends_ansible_with_its_workers_and_comes_through(paths: Paths) -> None:
    mark = str(paths.root / "hosts.yml")

    def interrupt() -> None:
        # Ansible and the worker that carries out the task: the moment that matters.
        deadline = time.monotonic() + 20
        while len(running(mark)) < 2 and time.monotonic() < deadline:
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        play(paths, [], slow=True)
    thread.join()
    assert running(mark) == []
    assert signal.getsignal(signal.SIGINT) == before


def test_ansible_that_does_not_end_is_killed_after_its_grace() -> None:
    cancel = Cancel(lambda: True, grace_s=0.2)
    assert cancel() is False
    time.sleep(0.3)
    assert cancel() is True
    assert Cancel(lambda: False, grace_s=0.0)() is False


def test_variables_of_an_inventory(paths: Paths) -> None:
    assert inventory_variables(paths, [paths.root / "hosts.yml"])["h1"]["number"] == 7


def test_unreachable_host_and_warnings_are_shown() -> None:
    said: list[str] = []
    lines = EventLines(said.append)
    lines({"event": "warning", "stdout": "[WARNING]: odd\r\n"})
    lines({"event": "runner_on_unreachable", "event_data": {"host": "h", "task": "t", "res": {"msg": "timed out"}}})
    assert said == ["  [WARNING]: odd", "  h: UNREACHABLE", "    timed out"]


def test_roles_loops_colours_and_long_texts() -> None:
    said: list[str] = []
    lines = EventLines(said.append)
    for name in ("a.b.role : Validating arguments against arg spec 'main' - x", "a.b.role : Do it"):
        lines({"event": "playbook_on_task_start", "event_data": {"name": name}})
    item = {"msg": "why", "_ansible_item_label": "target"}
    lines({"event": "runner_item_on_failed", "event_data": {"host": "h", "task": "t", "res": item}})
    whole = {"msg": "One or more items failed", "results": [item]}
    lines({"event": "runner_on_failed", "event_data": {"host": "h", "task": "t", "res": whole}})
    lines({"event": "error", "stdout": "\n".join(f"\x1b[0;31m{number}\x1b[0m" for number in range(100))})
    lines({"event": "verbose", "stdout": "h: table\n" + "row\n" * 20})
    assert said[:4] == ["- role: Do it", "  h: FAILED, target", "    why", "  ..."]
    assert said[-1] == "  99" and len(said) == 4 + LONGEST_TEXT
    assert [result.status for result in lines.results] == ["failed"]
