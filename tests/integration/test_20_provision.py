"""site.yml: check mode on a bare host, the first run, the second run, check mode on a provisioned host."""

from __future__ import annotations

from conftest import Hosts


def files(hosts: Hosts, host: str = "ct200") -> str:
    """A fingerprint of everything that a play could have left: paths, modes, sizes, times."""
    script = (
        "find /opt /etc/systemd/system /etc/specswap /var/lib/specswap /usr/local/bin -xdev "
        "-printf '%p %m %s %T@\\n' 2>/dev/null | sort; getent passwd specswap; systemctl list-units --plain --no-legend"
        " 'llamacpp-*'"
    )
    return hosts.run(["sh", "-c", script + "; true"], host)


def test_check_on_a_bare_host_tells_the_plan_and_touches_nothing(hosts: Hosts) -> None:
    before = files(hosts)
    result = hosts.play("site.yml", options="--check --diff").ok()
    assert files(hosts) == before
    assert result.count("changed") > 0, result.text
    assert "llamacpp-baseline-smoke.service" in result.text
    assert "ExecStart=" in result.text, "the unit's diff is missing"


def test_first_run_serves_the_declared_variant(provisioned: Hosts) -> None:
    first = provisioned.first_site  # type: ignore[attr-defined]
    assert first.count("changed") > 0
    status = provisioned.status()
    assert status["slots"]["smoke"]["active"]["variant"] == "baseline"
    assert provisioned.active_units() == ["llamacpp-baseline-smoke.service"]
    assert provisioned.show("llamacpp-baseline-smoke.service", "UnitFileState") == "enabled"
    for tier in range(5):
        assert f"tier {tier}" in first.text, first.text


def test_second_run_changes_nothing_and_restarts_nothing(provisioned: Hosts) -> None:
    unit = "llamacpp-baseline-smoke.service"
    invocation = provisioned.show(unit, "InvocationID")
    before = files(provisioned)
    result = provisioned.play("site.yml").ok()
    assert result.count("changed") == 0, result.text
    assert provisioned.show(unit, "InvocationID") == invocation
    assert files(provisioned) == before


def test_check_on_a_provisioned_host_finds_nothing_to_do(provisioned: Hosts) -> None:
    before = files(provisioned)
    result = provisioned.play("site.yml", options="--check --diff").ok()
    assert result.count("changed") == 0, result.text
    assert files(provisioned) == before


def test_check_shows_a_changed_flag_and_only_that(provisioned: Hosts) -> None:
    before = files(provisioned)
    variants = {
        "baseline": {"environment": "venv_llamacpp", "model": "target", "args": {"ctx": 2048, "threads": 1}},
    }
    result = provisioned.play("site.yml", options="--check --diff", specswap_variants=variants).ok()
    assert result.count("changed") > 0
    assert "2048" in result.text
    assert files(provisioned) == before
