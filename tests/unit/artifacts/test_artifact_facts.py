"""Facts of this very machine, and the judgement over made-up ones."""

import os
import platform
import socket

from specswap_host.facts import collect, judge

GOOD = {
    "python": {"version": "3.11.2", "path": "/usr/bin/python3.11"},
    "systemd": {"version": 252, "state": "running"},
    "glibc": "2.36",
    "arch": "x86_64",
    "disk_mib": {"/opt": 9000, "/var": 9000},
    "ports": {"smoke": {"port": 30001, "owners": []}},
}
WANTS = {"slots": [{"name": "smoke", "port": 30001}], "python": "3.9", "glibc": "2.28", "disk_mib": 2048}


def test_collect_reads_this_machine():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        facts = collect([{"name": "smoke", "port": port, "bind": "127.0.0.1"}])
    assert facts["python"]["version"] == platform.python_version()
    assert facts["cpus"] >= 1 and facts["memory_mib"]["total"] > 100 and facts["disk_mib"]["/var"] > 0
    assert facts["glibc"] == platform.libc_ver()[1]
    owners = facts["ports"]["smoke"]["owners"]
    assert [owner["pid"] for owner in owners] == [os.getpid()] and "pytest" in owners[0]["command"]
    assert [finding["id"] for finding in judge({**GOOD, "ports": facts["ports"]}, WANTS)] == ["port_foreign"]


def test_a_good_host_has_no_findings():
    ours = {"port": 30001, "owners": [{"pid": 1, "command": "python serve.py", "unit": "llamacpp-ngram-smoke.service"}]}
    assert judge(GOOD, WANTS) == []
    assert judge({**GOOD, "ports": {"smoke": ours}}, WANTS) == []


def test_a_missing_library_is_named_with_its_package():
    libraries = collect([], ["libc.so.6", "libnosuch.so.9"])["libraries"]
    assert libraries == {"libc.so.6": True, "libnosuch.so.9": False}
    wants = {**WANTS, "libraries": {"libc.so.6": "libc6", "libnosuch.so.9": "libnosuch9"}}
    (finding,) = judge({**GOOD, "libraries": libraries}, wants)
    assert (finding["id"], finding["severity"]) == ("library_missing", "error")
    assert "libnosuch.so.9" in finding["message"] and "apt-get install libnosuch9" in finding["fix"]


def test_every_finding_says_what_to_do():
    bad = {
        "python": {"version": "3.8.20", "path": None},
        "systemd": {"version": 245, "state": "running"},
        "glibc": "2.17",
        "arch": "aarch64",
        "disk_mib": {"/opt": 10, "/var": None},
        "ports": {"smoke": {"port": 30001, "owners": [{"pid": 7, "command": "nc -l", "unit": "ssh.service"}]}},
    }
    findings = judge(bad, WANTS)
    ids = ["python_old", "python_missing", "systemd_old", "glibc_old", "arch", "disk_space", "port_foreign"]
    assert [finding["id"] for finding in findings] == ids
    assert all(finding["fix"] and finding["severity"] == "error" for finding in findings)
    assert "process 7 (nc -l) of ssh.service" in findings[-1]["message"]


def test_versions_compare_as_numbers():
    assert judge({**GOOD, "glibc": "2.4"}, WANTS)[0]["id"] == "glibc_old"
    assert judge({**GOOD, "python": {"version": "3.10.0rc1", "path": "/usr/bin/python3.10"}}, WANTS) == []


def test_a_system_that_is_not_well_is_a_warning():
    finding = judge({**GOOD, "systemd": {"version": 252, "state": "maintenance"}}, WANTS)[0]
    assert (finding["id"], finding["severity"]) == ("systemd_state", "warning")
    missing = judge({**GOOD, "systemd": {"version": None, "state": None}, "glibc": None}, WANTS)
    assert [finding["id"] for finding in missing] == ["systemd_missing", "glibc_unknown"]
