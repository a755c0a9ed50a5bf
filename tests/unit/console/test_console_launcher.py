"""The shell launcher: which Python it takes, when it prepares, what it says. Interpreters and uv are scripts here."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


class Clone:
    """A clone with the launcher and nothing real behind it; every fake command writes down that it was called."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "a clone"
        self.bin = folder / "bin"
        self.log = folder / "log"
        (self.root / "locks").mkdir(parents=True)
        self.bin.mkdir()
        shutil.copy2(ROOT / "specswap", self.root / "specswap")
        for name in ("uv.lock", "pyproject.toml", "locks/uv.txt"):
            (self.root / name).write_text(f"{name}\n")

    def python(self, name: str, body: str = "") -> Path:
        """A command that says that it is itself the real interpreter, and whose `-m venv` makes a uv that logs."""
        path = self.bin / name
        path.write_text(
            f"""#!/bin/sh
echo "{name} $1 $2" | head -n 1 >>"{self.log}"
{body}
if [ "$1 $2" = "-m venv" ]; then
    mkdir -p "$3/bin"
    printf '#!/bin/sh\\nexit 0\\n' >"$3/bin/python"
    cat >"$3/bin/uv" <<'UV'
#!/bin/sh
echo "uv $*" >>"{self.log}"
[ -z "$UV_FAILS" ] || exit 1
mkdir -p "$UV_PROJECT_ENVIRONMENT/bin"
cat >"$UV_PROJECT_ENVIRONMENT/bin/python" <<'PY'
#!/bin/sh
echo "console $*"
PY
chmod +x "$UV_PROJECT_ENVIRONMENT/bin/python"
UV
    chmod +x "$3/bin/python" "$3/bin/uv"
    exit 0
fi
case "$2" in *_base_executable*) {sys.executable} "$@" >/dev/null && echo "$0" && exit 0; exit 1 ;; esac
exec {sys.executable} "$@"
"""
        )
        path.chmod(0o755)
        return path

    def run(self, *words: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.root / "specswap"), *words],
            capture_output=True,
            text=True,
            cwd=cwd or self.bin,
            env={"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(self.bin), **env},
            check=False,
        )

    @property
    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    made = Clone(tmp_path)
    made.python("python3.13")
    return made


def test_first_use_prepares_and_hands_over_the_arguments(clone: Clone) -> None:
    done = clone.run("demo", "--host", "a b")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "console -P -m specswap demo --host a b\n"
    assert any("uv sync --locked" in call for call in clone.calls)
    assert "preparing" in done.stderr


def test_later_start_prepares_nothing(clone: Clone) -> None:
    clone.run()
    calls = clone.calls
    done = clone.run("x", cwd=clone.root)
    assert done.stdout == "console -P -m specswap x\n"
    assert done.stderr == ""
    assert clone.calls == calls


@pytest.mark.parametrize("name", ["uv.lock", "pyproject.toml", "locks/uv.txt"])
def test_changed_locks_prepare_again(clone: Clone, name: str) -> None:
    clone.run()
    (clone.root / name).write_text("other\n")
    assert "preparing" in clone.run().stderr


def test_another_interpreter_prepares_again(clone: Clone) -> None:
    clone.run()
    other = clone.python("other")
    assert "preparing" in clone.run(SPECSWAP_PYTHON=str(other)).stderr


def test_shim_that_does_not_run_is_passed_over(clone: Clone) -> None:
    clone.python("python3.13", "echo 'command not found' >&2; exit 127")
    clone.python("python3.12", "exit 1")
    clone.python("python3.11")
    done = clone.run()
    assert done.returncode == 0, done.stderr
    assert [call.split()[0] for call in clone.calls][:3] == ["python3.13", "python3.12", "python3.11"]
    assert "command not found" not in done.stderr


def test_wrong_specswap_python_is_refused_by_name(clone: Clone) -> None:
    done = clone.run(SPECSWAP_PYTHON="/nonexistent/python")
    assert done.returncode == 1
    assert "SPECSWAP_PYTHON=/nonexistent/python" in done.stderr
    assert not (clone.root / ".venv").exists()


def test_no_python_names_the_packages(clone: Clone) -> None:
    # Every command that the launcher uses, but no interpreter.
    tools = clone.root.parent / "tools"
    tools.mkdir()
    for name in ("sh", "sha256sum", "dirname", "readlink", "cat", "id"):
        found = shutil.which(name)
        assert found
        (tools / name).symlink_to(found)
    done = clone.run(PATH=str(tools))
    assert done.returncode == 1
    assert "apt-get install -y python3 python3-venv" in done.stderr


def test_failed_sync_is_reported_and_tried_again(clone: Clone) -> None:
    done = clone.run(UV_FAILS="1")
    assert done.returncode == 1
    # Nothing of the shell's own between uv's words and ours.
    assert [line for line in done.stderr.splitlines() if "specswap:" not in line and not line.startswith("  ")] == []
    assert "could not be made" in done.stderr
    assert not (clone.root / ".venv/.specswap-stamp").exists()
    assert clone.run().returncode == 0


def test_environment_variable_is_honoured(clone: Clone, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere"
    assert clone.run(UV_PROJECT_ENVIRONMENT=str(target)).returncode == 0
    assert (target / ".specswap-stamp").exists()
    assert not (clone.root / ".venv").exists()
    assert clone.run(UV_PROJECT_ENVIRONMENT=".venv-other").returncode == 0
    assert (clone.root / ".venv-other/.specswap-stamp").exists()


def test_environment_of_another_clone_is_not_taken_over(clone: Clone, tmp_path: Path) -> None:
    target = tmp_path / "shared"
    assert clone.run(UV_PROJECT_ENVIRONMENT=str(target)).returncode == 0
    stamp = (target / ".specswap-stamp").read_text()
    other = tmp_path / "other clone"
    shutil.copytree(clone.root, other)
    environment = {"PATH": f"{clone.bin}:/usr/bin:/bin", "HOME": str(clone.bin)}

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        argv = [str(other / "specswap"), "x"]
        return subprocess.run(argv, capture_output=True, text=True, env={**environment, **more}, check=False)

    done = run(UV_PROJECT_ENVIRONMENT=str(target))
    assert done.returncode == 1 and done.stdout == ""
    assert str(clone.root) in done.stderr and "UV_PROJECT_ENVIRONMENT" in done.stderr
    assert (target / ".specswap-stamp").read_text() == stamp
    assert run().returncode == 0, "one of its own"
    assert clone.run(UV_PROJECT_ENVIRONMENT=str(target)).stderr == "", "nothing to prepare again"
    shutil.rmtree(clone.root)
    assert run(UV_PROJECT_ENVIRONMENT=str(target)).returncode == 0, "nobody uses it any more"


def test_a_copied_clone_prepares_its_own_copy(clone: Clone, tmp_path: Path) -> None:
    clone.run()
    other = tmp_path / "copy"
    shutil.copytree(clone.root, other, symlinks=True)
    environment = {"PATH": f"{clone.bin}:/usr/bin:/bin", "HOME": str(clone.bin)}
    argv = [str(other / "specswap")]
    done = subprocess.run(argv, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0 and "preparing" in done.stderr


def test_started_through_a_link(clone: Clone, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(os.path.relpath(clone.root / "specswap", tmp_path))
    done = subprocess.run(
        [str(link), "hello"],
        capture_output=True,
        text=True,
        env={"PATH": f"{clone.bin}:/usr/bin:/bin", "HOME": "/nonexistent"},
        check=False,
    )
    assert done.stdout == "console -P -m specswap hello\n", done.stderr


def test_two_starts_at_once_prepare_once(clone: Clone) -> None:
    clone.python("python3.13", 'if [ "$1 $2" = "-m venv" ]; then sleep 1; fi')
    environment = {"PATH": f"{clone.bin}:/usr/bin:/bin", "HOME": str(clone.bin)}
    both = [
        subprocess.Popen(
            [str(clone.root / "specswap"), "x"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in range(2)
    ]
    texts = [process.communicate(timeout=30) for process in both]
    assert [process.returncode for process in both] == [0, 0], texts
    assert sum("uv sync" in call for call in clone.calls) == 1
    assert sum("waiting" in err for _, err in texts) == 1


def test_incomplete_clone_names_the_file(clone: Clone) -> None:
    (clone.root / "uv.lock").unlink()
    done = clone.run()
    assert done.returncode == 1
    assert "uv.lock is missing" in done.stderr
