"""A provisioned host is what its registry says, and serves."""

from __future__ import annotations

import json
from typing import Any

from testinfra.host import Host

Services = list[dict[str, Any]]

ASK = """
import json, sys, urllib.request
url, model = sys.argv[1:]
body = {"model": model, "max_tokens": 16, "temperature": 0,
        "messages": [{"role": "user", "content": "What is 2+2? Answer with the number."}]}
opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
request = urllib.request.Request(url + "/v1/chat/completions", json.dumps(body).encode(),
                                 {"Content-Type": "application/json"})
print(opener.open(request, timeout=120).read().decode())
"""


def show(host: Host, unit: str, prop: str) -> str:
    return str(host.check_output("systemctl show -P %s %s", prop, unit)).strip()


def test_service_user_cannot_log_in(host: Host) -> None:
    user = host.user("specswap")
    assert user.exists
    assert user.shell in ("/usr/sbin/nologin", "/bin/false")
    assert user.uid < 1000, "a system user"


def test_units_are_what_the_registry_says(host: Host, services: Services) -> None:
    for service in services:
        file = host.file(f"/etc/systemd/system/{service['unit']}")
        assert (file.user, file.group, file.mode) == ("root", "root", 0o644), file.path
        assert file.content_string.splitlines()[0] == f"# specswap plan_hash={service['plan_hash']}", file.path
        assert file.content_string == service["unit_text"], f"{file.path} was edited or not written"


def test_systemd_finds_no_fault_in_the_units(host: Host, services: Services) -> None:
    for service in services:
        result = host.run("systemd-analyze verify %s", service["unit"])
        told = [line for line in result.stderr.splitlines() if service["unit"] in line]
        assert result.rc == 0 and not told, "\n".join(told)
        assert show(host, service["unit"], "NeedDaemonReload") == "no", service["unit"]


def test_units_are_hardened(host: Host, services: Services) -> None:
    for service in services:
        unit = f"/etc/systemd/system/{service['unit']}"
        result = host.run("systemd-analyze security --offline=true --threshold=25 %s", unit)
        assert result.rc == 0, result.stdout[-300:]


def test_only_the_active_unit_is_enabled_and_running(host: Host, services: Services, active: Services) -> None:
    for service in services:
        on = service["unit"] in {one["unit"] for one in active}
        unit = host.service(service["unit"])
        assert unit.is_running is on, service["unit"]
        assert unit.is_enabled is on, service["unit"]


def test_the_active_unit_has_not_been_restarted_since_it_was_proven(
    host: Host, states: dict[str, dict[str, Any]], active: Services
) -> None:
    for service in active:
        assert show(host, service["unit"], "NRestarts") == "0", service["unit"]
        proven = states[service["slot"]["name"]]["active"]["invocation_id"]
        assert show(host, service["unit"], "InvocationID") == proven, service["unit"]


def test_the_port_belongs_to_the_units_own_processes(host: Host, active: Services) -> None:
    for service in active:
        group = show(host, service["unit"], "ControlGroup")
        owners = host.check_output("ss -Hltnp sport = :%s", str(service["slot"]["port"]))
        pids = {part.split(",")[0] for part in owners.split("pid=")[1:]}
        assert len(pids) == 1, owners
        assert f"{service['slot']['bind']}:{service['slot']['port']}" in owners
        assert group in host.check_output("cat /proc/%s/cgroup", pids.pop())


def test_the_process_runs_as_the_service_user_with_the_planned_command(host: Host, active: Services) -> None:
    for service in active:
        pid = show(host, service["unit"], "MainPID")
        argv = host.check_output("tr '\\0' '\\n' < /proc/%s/cmdline", pid).splitlines()
        assert argv == service["argv"]
        assert host.check_output("stat -c %%U /proc/%s", pid) == service["user"]
        assert "NoNewPrivs:\t1" in host.check_output("cat /proc/%s/status", pid)


def test_releases_are_stamped_and_read_only(host: Host, services: Services) -> None:
    for path in {service["release_path"] for service in services}:
        stamp = json.loads(host.check_output("cat %s/specswap-release.json", path))
        assert path.endswith("/" + stamp["release"])
        assert stamp["release"].endswith(stamp["lock_sha256"][:12])
        writable = host.check_output("find %s -type f -perm /222 | head -3", path)
        assert writable == "", "files of a release must be read-only"
        listed = host.check_output("%s/bin/python -c %s", path, LIST_PACKAGES)
        assert json.loads(listed) == stamp["packages"], f"{path} holds other packages than it was stamped with"


LIST_PACKAGES = (
    "import json, re; from importlib.metadata import distributions; "
    "print(json.dumps({re.sub('[-_.]+', '-', d.metadata['Name']).lower(): d.version for d in distributions()}))"
)


def test_models_are_complete_and_read_only(host: Host, services: Services) -> None:
    for model in {model["path"]: model for service in services for model in service["models"].values()}.values():
        file = host.file(model["path"])
        assert (file.user, file.size, file.mode & 0o222) == ("root", model["size"], 0), file.path
        assert file.sha256sum == model["sha256"], file.path


def test_nothing_of_ours_can_be_written_by_everybody(host: Host) -> None:
    places = "/opt/specswap /etc/specswap /var/lib/specswap"
    assert host.check_output(f"find {places} ! -type l -perm -002 | head -3") == ""


def test_services_cannot_write_code_or_state(host: Host) -> None:
    owned = host.check_output("find /opt/specswap /etc/specswap /var/lib/specswap -user specswap | head -3")
    assert owned == ""


def test_a_real_completion_comes_from_the_active_variant(host: Host, active: Services) -> None:
    for service in active:
        url = f"http://{service['slot']['bind']}:{service['slot']['port']}"
        for model in (service["served_model"], service["identity"]):
            answer = json.loads(host.check_output("python3 -c %s %s %s", ASK, url, model))
            choice = answer["choices"][0]
            assert choice["message"]["content"].strip(), answer
            assert choice["finish_reason"] in ("stop", "length"), answer
            assert answer["usage"]["completion_tokens"] > 0, answer


def test_the_host_agrees_with_itself(host: Host, active: Services) -> None:
    status = json.loads(host.check_output("specswap-host status --json"))
    for service in active:
        slot = status["slots"][service["slot"]["name"]]
        assert slot["active"]["variant"] == service["variant"]
        assert slot["agree"], slot["reasons"]


def test_the_toolkit_on_the_host_is_whole(host: Host) -> None:
    current = host.check_output("readlink -f /opt/specswap/lib/current")
    assert host.file("/usr/local/bin/specswap-host").mode == 0o755
    assert host.run("specswap-host --help").rc == 0
    named = current.rsplit("/", 1)[1]
    assert host.check_output("/usr/bin/python3 -I -B -c %s %s", LIB_HASH, current) == named, "files were edited by hand"


LIB_HASH = """
import hashlib, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from specswap_host.toolkit import LIB_SOURCES, tree_hash
names = [Path(source).name for source in LIB_SOURCES]
together = "\\n".join(f"{name} {tree_hash(Path(sys.argv[1]) / name)}" for name in names)
print(hashlib.sha256(together.encode()).hexdigest()[:12])
"""
