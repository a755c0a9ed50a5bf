"""Units and registry in temporary directories; systemctl is a recorder on PATH."""

import json
import os
from pathlib import Path

import pytest
from specswap_host.journal import Journal
from specswap_host.lock import Owner, SlotLock
from specswap_host.plan import Service
from specswap_host.state import Active, State, save
from specswap_host.units import UnitsError, apply_services

# Answers `show -- UNIT...` from two lists of names; everything else is written down.
SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then
  while [ "$1" != -- ]; do shift; done; shift
  for unit; do
    grep -qx "$unit" {root}/running && echo ActiveState=active || echo ActiveState=inactive
    grep -qx "$unit" {root}/disabled && echo UnitFileState=disabled || echo UnitFileState=enabled
    echo
  done
else
  echo "$@" >> {root}/log
fi
"""


class Host:
    """A host's directories, and a systemctl that writes down what it was asked."""

    def __init__(self, root: Path) -> None:
        self.units, self.slots, self.state, self.log = (root / name for name in ("units", "slots", "state", "log"))
        self.running, self.disabled = root / "running", root / "disabled"
        self.running.write_text("")
        self.disabled.write_text("")
        for folder in (self.units, self.state):
            folder.mkdir()
        tool = root / "bin" / "systemctl"
        tool.parent.mkdir()
        tool.write_text(SYSTEMCTL.format(root=root))
        tool.chmod(0o755)

    def apply(self, services, wanted=None, check=False, purge=True):
        spec = {"services": services, "wanted": wanted or {"smoke": "baseline"}, "purge": purge}
        spec.update(units_dir=str(self.units), slots_dir=str(self.slots), state_dir=str(self.state))
        return apply_services(spec, check)

    def commit(self, one):
        active = Active(Service.from_dict(one), 0.0, "job", "inv", (0, 1, 2, 3, 4))
        save(self.state / "smoke" / "state.json", State("smoke", active))

    def asked(self):
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def host(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return Host(tmp_path)


def service(variant, plan_hash="0123456789ab", extra=""):
    unit = f"llamacpp-{variant}-smoke.service"
    text = f"# specswap plan_hash={plan_hash}\n[Service]\nExecStart=/bin/true\n{extra}"
    budgets = dict.fromkeys(("load_s", "stall_s", "drain_s", "stop_s", "handover_s", "gate_s", "soak_s"), 1)
    return {
        "schema": 1,
        "slot": {"name": "smoke", "port": 30001, "bind": "127.0.0.1", "gpus": []},
        "variant": variant,
        "engine": "llamacpp",
        "unit": unit,
        "environment": "e",
        "release": "e-1",
        "release_path": "/opt/e-1",
        "launcher": None,
        "models": {},
        "argv": ["/bin/true"],
        "env": {},
        "served_model": "m",
        "identity": f"m@smoke.{variant}.{plan_hash}",
        "settings": {},
        "claims": {},
        "user": "specswap",
        "rivals": [],
        "budgets": budgets,
        "plan_hash": plan_hash,
        "unit_text": text,
    }


def test_writes_all_once_and_then_nothing(host):
    services = [service("baseline"), service("ngram")]
    first = host.apply(services)
    assert first["changed"] and len(first["diff"]) == 3 and host.asked() == ["daemon-reload"]
    assert (host.units / "llamacpp-ngram-smoke.service").stat().st_mode & 0o777 == 0o644
    registry = json.loads((host.slots / "smoke.json").read_text())
    assert registry["wanted"] == "baseline" and sorted(registry["services"]) == ["baseline", "ngram"]
    assert first["slots"]["smoke"]["needs_swap"] and "nothing was committed" in first["slots"]["smoke"]["reason"]
    host.commit(services[0])
    host.running.write_text(f"{services[0]['unit']}\n")
    second = host.apply(services)
    assert not second["changed"] and host.asked().count("daemon-reload") == 1
    serving = {"active": "baseline", "wanted": "baseline", "needs_swap": False, "reason": "serves as wanted"}
    assert second["slots"] == {"smoke": serving}


def test_a_committed_unit_that_died_needs_a_swap(host):
    host.apply([service("baseline")])
    host.commit(service("baseline"))
    result = host.apply([service("baseline")])
    assert not result["changed"]
    assert result["slots"]["smoke"]["needs_swap"] and "does not run" in result["slots"]["smoke"]["reason"]


def test_a_unit_that_serves_but_would_not_start_at_boot_needs_a_swap(host):
    one = service("baseline")
    host.apply([one])
    host.commit(one)
    host.running.write_text(f"{one['unit']}\n")
    host.disabled.write_text(f"{one['unit']}\n")
    slot = host.apply([one], check=True)["slots"]["smoke"]
    assert slot["needs_swap"] and "is disabled at boot: it would not start" in slot["reason"]


def test_a_slot_with_a_job_is_not_written_to_and_its_owner_is_named(host):
    services = [service("baseline"), service("ngram")]
    host.apply(services)
    changed = [service("baseline"), service("ngram", "e" * 12)]
    before = {path: path.read_text() for path in [*host.units.iterdir(), *host.slots.iterdir()]}
    with SlotLock(host.state / "smoke" / "lock").acquire(Owner(os.getpid(), "j1", "ann", "desk", "swap.yml")):
        with pytest.raises(UnitsError, match=r"slot smoke: .*job j1 of ann@desk .*nothing was written"):
            host.apply(changed)
        assert {path: path.read_text() for path in before} == before
        assert host.apply(changed, check=True)["changed"], "looking needs no lock"
        assert not host.apply(services)["changed"], "nothing to write needs no lock"
    assert host.apply(changed)["changed"]
    assert (host.state / "smoke" / "lock").read_text() == "", "the lock was let go of"


def test_check_mode_shows_and_writes_nothing(host):
    result = host.apply([service("baseline")], check=True)
    assert [entry["before"] for entry in result["diff"]] == [None, None]
    assert list(host.units.iterdir()) == [] and not host.slots.exists() and host.asked() == []


def test_the_unit_that_serves_is_left_to_the_swap(host):
    host.apply([service("baseline"), service("ngram")])
    host.commit(service("baseline"))
    changed = [service("baseline", "f" * 12), service("ngram", "e" * 12)]
    result = host.apply(changed)
    assert [Path(entry["path"]).name for entry in result["diff"]] == ["llamacpp-ngram-smoke.service", "smoke.json"]
    assert "plan_hash=0123456789ab" in (host.units / "llamacpp-baseline-smoke.service").read_text()
    assert result["slots"]["smoke"]["needs_swap"] and "other settings" in result["slots"]["smoke"]["reason"]


def test_a_new_unit_text_with_the_same_plan_needs_a_swap_too(host):
    host.apply([service("baseline")])
    host.commit(service("baseline"))
    result = host.apply([service("baseline", extra="Nice=5\n")])
    assert result["slots"]["smoke"]["needs_swap"] and "another unit text" in result["slots"]["smoke"]["reason"]
    assert "Nice" not in (host.units / "llamacpp-baseline-smoke.service").read_text()


def test_another_variant_is_wanted(host):
    services = [service("baseline"), service("ngram")]
    host.apply(services)
    host.commit(services[0])
    slot = host.apply(services, {"smoke": "ngram"})["slots"]["smoke"]
    assert (slot["active"], slot["wanted"], slot["needs_swap"]) == ("baseline", "ngram", True)


def test_purge_takes_ours_and_only_those_that_neither_serve_nor_run(host):
    host.apply([service("baseline"), service("ngram"), service("old"), service("run")])
    host.commit(service("ngram"))
    host.running.write_text("llamacpp-run-smoke.service\n")
    (host.units / "foreign.service").write_text("[Service]\nExecStart=/bin/true\n")
    host.log.unlink()
    assert host.apply([service("baseline")], purge=False)["diff"][-1]["after"] is not None
    result = host.apply([service("baseline")])
    assert [entry["path"] for entry in result["diff"]] == [str(host.units / "llamacpp-old-smoke.service")]
    left = sorted(path.name for path in host.units.iterdir())
    ours = [f"llamacpp-{name}-smoke.service" for name in ("baseline", "ngram", "run")]
    assert left == ["foreign.service", *ours]
    assert host.asked()[-2:] == ["disable --quiet --no-reload -- llamacpp-old-smoke.service", "daemon-reload"]


def test_a_slot_that_is_gone_from_the_inventory_is_reported_not_stopped(host):
    host.apply([service("baseline")])
    host.commit(service("baseline"))
    spec = {"services": [], "wanted": {}, "units_dir": str(host.units), "slots_dir": str(host.slots)}
    result = apply_services({**spec, "state_dir": str(host.state)}, False)
    assert not (host.slots / "smoke.json").exists()
    assert (host.units / "llamacpp-baseline-smoke.service").exists()
    slot = result["slots"]["smoke"]
    assert not slot["needs_swap"] and "stop and disable llamacpp-baseline-smoke.service" in slot["reason"]
    assert slot["active"] == "baseline"
    host.disabled.write_text("llamacpp-baseline-smoke.service\n")
    slot = apply_services({**spec, "state_dir": str(host.state)}, False)["slots"]["smoke"]
    assert slot["active"] is None and "by hand" not in slot["reason"], "stopped and disabled: nothing is left to do"


def test_an_interrupted_job_needs_another_one(host):
    one = service("baseline")
    host.apply([one])
    host.commit(one)
    host.running.write_text(f"{one['unit']}\n")
    journal = Journal(host.state / "smoke" / "journal.jsonl")
    journal.append("j1", "job_accepted", kind="swap")
    with SlotLock(host.state / "smoke" / "lock").acquire(Owner(os.getpid(), "j1", "ann", "desk", "swap.yml")):
        assert not host.apply([one])["slots"]["smoke"]["needs_swap"], "it runs"
    slot = host.apply([one], check=True)["slots"]["smoke"]
    assert slot["needs_swap"] and "job j1 was interrupted" in slot["reason"]
    host.running.write_text(f"{one['unit']}\nspecswap-job-smoke.service\n")
    assert not host.apply([one])["slots"]["smoke"]["needs_swap"], "it is just being started"
    host.running.write_text(f"{one['unit']}\n")
    journal.append("j1", "job_finished", outcome="interrupted")
    assert not host.apply([one])["slots"]["smoke"]["needs_swap"]


@pytest.mark.parametrize(
    ("services", "wanted", "words"),
    [
        ([service("baseline")], {"smoke": "ngram"}, r"wanted variant ngram has no service \(known: baseline\)"),
        ([service("baseline"), service("baseline")], {"smoke": "baseline"}, "described twice"),
        ([{**service("baseline"), "plan_hash": "9" * 12}], {"smoke": "baseline"}, "does not carry its plan_hash"),
        ([{**service("baseline"), "unit": "../x.service"}], {"smoke": "baseline"}, "not a unit name"),
        ([{**service("baseline"), "unit_text": ""}], {"smoke": "baseline"}, "lacks the key unit_text"),
    ],
)
def test_contradictions_are_refused_before_anything_is_written(host, services, wanted, words):
    with pytest.raises(UnitsError, match=words):
        host.apply(services, wanted)
    assert list(host.units.iterdir()) == [] and not host.slots.exists()


def test_an_unreadable_state_is_named(host):
    host.commit(service("baseline"))
    (host.state / "smoke" / "state.json").write_text("{half")
    with pytest.raises(UnitsError, match=r"state\.json: cannot be read \(not valid JSON.*mv "):
        host.apply([service("baseline")])
