"""Stages of a test run: real commands, JUnit reports, the summary; and the search for interpreters."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from specswap import checks
from specswap.interpreters import Interpreter, find_interpreters, this_interpreter
from specswap.paths import Paths
from specswap.stages import Case, Stage, StageResult, read_junit, run_stage, slowest
from specswap.testing import PARTS, Request, controllers, prefix_of, run_tests, summarise

ROOT = Path(__file__).resolve().parents[3]


def test_good_command() -> None:
    said: list[str] = []
    result = run_stage(Stage("ok", [sys.executable, "-c", "print('not shown')"]), said.append)
    assert result.ok is True
    assert not any("not shown" in line for line in said)


def test_failed_command_shows_its_output_and_status() -> None:
    said: list[str] = []
    result = run_stage(Stage("bad", [sys.executable, "-c", "print('why'); raise SystemExit(3)"]), said.append)
    assert result.ok is False
    assert "   why" in said
    assert "exit status 3" in result.line


def test_missing_command_is_a_failed_stage() -> None:
    assert run_stage(Stage("none", ["/nonexistent/tool"]), print).ok is False


def test_work_that_raises_is_a_failed_stage_with_its_reason() -> None:
    def work() -> tuple[bool, str]:
        raise RuntimeError("no backend\ninstall one")

    said: list[str] = []
    result = run_stage(Stage("work", work=work), said.append)
    assert result.ok is False
    assert said[1:3] == ["   no backend", "   install one"]


def test_skipped_stage_says_why_and_does_not_fail() -> None:
    result = run_stage(Stage("later", ["/nonexistent/tool"], skip="no tool"), print)
    assert result.ok is None
    assert result.line.startswith("skipped") and result.line.endswith("no tool")


def test_pytest_report_gives_counts_and_seconds(tmp_path: Path) -> None:
    test = tmp_path / "test_it.py"
    test.write_text(
        "import pytest\n"
        "def test_good(): pass\n"
        "def test_bad(): assert 0\n"
        "@pytest.mark.skip(reason='x')\n"
        "def test_skipped(): pass\n"
    )
    report = tmp_path / "reports" / "it.xml"
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={tmp_path}"]
    result = run_stage(Stage("it", [*argv, f"--junitxml={report}", str(test)], junit=report), lambda line: None)
    assert result.ok is False
    assert result.summary == "1 passed, 1 failed, 1 skipped; exit status 1"
    assert {case.name.rpartition("::")[2]: case.ok for case in result.cases} == {
        "test_good": True,
        "test_bad": False,
        "test_skipped": True,
    }


def test_a_report_of_an_earlier_run_is_not_read(tmp_path: Path) -> None:
    report = tmp_path / "old.xml"
    report.write_text("<testsuites><testcase classname='a' name='old' time='1'/></testsuites>")
    result = run_stage(Stage("it", [sys.executable, "-c", "raise SystemExit(1)"], junit=report), lambda line: None)
    assert result.cases == ()


def test_torn_report_is_an_error(tmp_path: Path) -> None:
    report = tmp_path / "torn.xml"
    report.write_text("<testsuites><testcase")
    with pytest.raises(ElementTree.ParseError):
        read_junit(report)


def test_slowest_over_all_stages() -> None:
    first = StageResult("a", True, 1.0, "", [Case("x", 1.0, True), Case("y", 3.0, True)])
    second = StageResult("b", True, 1.0, "", [Case("z", 2.0, True)])
    assert [line.split()[2] for line in slowest([first, second], 2)] == ["y", "z"]


def test_summary_names_failed_stages_last() -> None:
    said: list[str] = []
    summarise([StageResult("a", True, 1.0, "5 passed"), StageResult("b", False, 2.0, "exit status 1")], said.append)
    assert said[-1] == "FAILED: b (3.0 s)"
    assert any(line.startswith("ok       a") for line in said)


def test_later_stages_run_after_a_failed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    good, bad = [sys.executable, "-c", ""], [sys.executable, "-c", "raise SystemExit(1)"]
    makers = [lambda: [Stage("one", bad)], lambda: [Stage("two", good)]]
    monkeypatch.setattr("specswap.testing.stage_makers", lambda paths, request, say: makers)
    results = run_tests(Paths(ROOT), Request(parts=PARTS), lambda line: None)
    assert [(result.name, result.ok) for result in results] == [("one", False), ("two", True)]


def fake(folder: Path, version: str, body: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"python{version}"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_interpreters_are_run_and_shims_passed_over(tmp_path: Path) -> None:
    fake(tmp_path / "shims", "3.12", "echo 'command not found' >&2; exit 127")
    fake(tmp_path / "shims", "3.13", "echo 3.9; echo /lies")
    real = fake(tmp_path / "pyenv/versions/3.12.1/bin", "3.12", "echo 3.12; echo /real/python3.12")
    assert real.exists()
    found = find_interpreters(
        ["3.11", "3.12", "3.13"],
        {"PATH": str(tmp_path / "shims"), "PYENV_ROOT": str(tmp_path / "pyenv"), "HOME": str(tmp_path)},
    )
    assert found == {"3.12": Interpreter("3.12", Path("/real/python3.12"))}


def test_own_interpreter_comes_first_and_uses_its_own_environment() -> None:
    chosen = controllers([])
    assert chosen[0] == this_interpreter()
    assert len({interpreter.version for interpreter in chosen}) == len(chosen)
    paths = Paths(ROOT)
    assert prefix_of(paths, chosen[0]) == Path(sys.prefix)
    assert prefix_of(paths, Interpreter("3.99", Path("/x"))) == paths.work / "venv-3.99"


def test_target_stage_finds_syntax_of_a_newer_python(tmp_path: Path) -> None:
    for package in ("host/specswap_host", "bench/specswap_bench"):
        (tmp_path / package).mkdir(parents=True)
        (tmp_path / package / "__init__.py").write_text("")
    module = tmp_path / "host/specswap_host/one.py"
    module.write_text("x = 1\n")
    stage = checks.target_stage(Paths(tmp_path), this_interpreter())
    assert run_stage(stage, lambda line: None).ok is True
    module.write_text("x = = 1\n")
    assert run_stage(stage, lambda line: None).ok is False
    module.write_text("import no_such_module\n")
    assert run_stage(stage, lambda line: None).ok is False


def test_shell_scripts_run_where_sh_is_not_bash() -> None:
    assert subprocess.run(["sh", "-n", str(ROOT / "specswap")], check=False).returncode == 0
    assert os.access(ROOT / "specswap", os.X_OK)


def test_a_module_without_a_page_fails(tmp_path: Path) -> None:
    """The real ansible-doc on a collection with one documented and one bare module."""
    collection = tmp_path / "collections/ansible_collections/specswap"
    collection.mkdir(parents=True)
    (collection / "core").symlink_to("../../..")
    modules = tmp_path / "plugins/modules"
    modules.mkdir(parents=True)
    (tmp_path / "galaxy.yml").write_text("namespace: specswap\nname: core\nversion: 1.0.0\n")
    (tmp_path / "ansible.cfg").write_text("[defaults]\ncollections_path = collections\n")
    page = 'DOCUMENTATION = """\nmodule: good\nshort_description: Says so\ndescription: [It does.]\nauthor: [us]\n"""\n'
    (modules / "good.py").write_text(page)
    paths = Paths(tmp_path)
    command, env = Path(sys.prefix) / "bin/ansible-doc", checks.environment_of(paths, Path(sys.prefix))
    assert checks.document(paths, command, env) == (True, "1 pages")
    (modules / "bare.py").write_text("x = 1\n")
    held, summary = checks.document(paths, command, env)
    assert not held and "specswap.core.bare" in summary
