"""Arguments, exit codes and errors of the console."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from specswap import cli
from specswap.completion import SHELLS, render
from specswap.errors import ConsoleError
from specswap.measure import names
from specswap.paths import Paths


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "specswap", *words], capture_output=True, text=True, cwd="/", check=False
    )


def test_without_arguments_three_things_to_type(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    out = capsys.readouterr().out
    assert [line.split("  ")[1] for line in out.splitlines() if line.startswith("  ./specswap")] == [
        "./specswap demo",
        "./specswap test",
        "./specswap demo --down",
    ]


@pytest.mark.parametrize("command", [command.name for command in cli.COMMANDS if command.name != "sandbox"])
def test_every_command_has_help_with_examples(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "examples:" in out and "exit codes:" in out


@pytest.mark.parametrize("words", [["nonsense"], ["demo", "--nonsense"], ["test", "nonsense"], ["completion", "tcsh"]])
def test_wrong_usage_is_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
    assert "usage:" in capsys.readouterr().err


def test_unknown_measure_names_the_known_ones() -> None:
    done = run("measure", "nonsense")
    assert done.returncode == 2
    assert done.stderr.splitlines() == ["specswap: no measure nonsense", f"  Known: {', '.join(names())}"]


def test_unknown_python_is_refused_before_any_stage(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from specswap.testing import Request, run_tests

    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConsoleError, match=r"Python 3\.99 is not on this machine"):
        run_tests(Paths(tmp_path), Request(parts=("unit",), pythons=["3.99"]), print)


def guarded(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> int:
    def fail(*_: object) -> int:
        raise error

    command = cli.COMMANDS[0]
    monkeypatch.setattr(cli, "COMMANDS", (cli.Command(**{**vars(command), "handler": fail}),))
    return cli.main(["demo"])


def test_expected_error_is_two_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("SPECSWAP_DEBUG", raising=False)
    assert guarded(monkeypatch, ConsoleError("what", "way out", 5)) == 5
    assert capsys.readouterr().err == "specswap: what\n  way out\n"


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSWAP_DEBUG", "1")
    with pytest.raises(ConsoleError):
        guarded(monkeypatch, ConsoleError("what", "way out"))


def test_errors_of_own_packages_are_expected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from specswap_sandbox import SandboxError

    monkeypatch.delenv("SPECSWAP_DEBUG", raising=False)
    assert guarded(monkeypatch, SandboxError("net 10.1.0: taken\nuse another")) == 1
    assert capsys.readouterr().err == "specswap: net 10.1.0: taken\n  use another\n"


def test_a_fault_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ZeroDivisionError):
        guarded(monkeypatch, ZeroDivisionError("a fault"))


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    assert guarded(monkeypatch, KeyboardInterrupt()) == 130


def test_sandbox_words_reach_the_sandbox() -> None:
    done = run("sandbox", "up", "--help")
    assert done.returncode == 0
    assert "NAME" in done.stdout
    assert run("sandbox", "nonsense").returncode == 2


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_knows_every_command_and_parses(shell: str, tmp_path: Path) -> None:
    script = render(cli.build_parser(), shell)
    for command in cli.COMMANDS:
        assert command.name in script
    assert "keep-going" in script and "integration" in script
    interpreter = shutil.which(shell)
    if interpreter is None:
        pytest.skip(f"{shell} is not installed: only the words were checked")
    path = tmp_path / "completion"
    path.write_text(script)
    assert subprocess.run([interpreter, "-n", str(path)], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")
def test_bash_completion_completes() -> None:
    script = render(cli.build_parser(), "bash")
    program = f'{script}\nCOMP_WORDS=(specswap demo --k); COMP_CWORD=2; _specswap; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "--keep-going\n", done.stderr


def test_paths_are_shown_as_a_user_types_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert Paths(tmp_path).shown(tmp_path / "results" / "x") == "results/x"
    assert Paths(tmp_path).shown(Path("/run/x")) == "/run/x"
