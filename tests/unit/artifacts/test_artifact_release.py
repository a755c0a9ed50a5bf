"""Releases, built by the real uv from small local wheelhouses."""

import ast
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import uv
from specswap_host import release
from specswap_host.release import ReleaseError, ensure_release, verify_release


class House:
    """One host's directories, and the way to say which release is wanted."""

    def __init__(self, root: Path, lock_of: Callable[..., str]) -> None:
        self.root = root
        self.lock_of = lock_of
        for name in ("wheelhouse", "units", "slots", "state"):
            (root / name).mkdir()

    def spec(self, *wheels: Any, environment: str = "venv_test", stock: bool = True, **more: Any) -> dict[str, Any]:
        lock = self.lock_of(*wheels)
        if stock:
            for wheel in wheels:
                shutil.copy(wheel.path, self.root / "wheelhouse")
        digest = hashlib.sha256(lock.encode()).hexdigest()[:12]
        spec: dict[str, Any] = {
            "release": f"{environment}-{digest}",
            "environment": environment,
            "flavour": "cpu",
            "python": "3.9",
            "lock_text": lock,
            "wheels": {wheel.name: wheel.sha256 for wheel in wheels},
            "uv": uv.find_uv_bin(),
            "keep": 2,
        }
        spec.update(wheelhouse=str(self.root / "wheelhouse"), envs=str(self.root / "envs"))
        spec.update({f"{name}_dir": str(self.root / name) for name in ("units", "slots", "state")})
        return {**spec, **more}


@pytest.fixture
def house(tmp_path: Path, lock_of: Callable[..., str]) -> Iterator[House]:
    (tmp_path / "host").mkdir()
    yield House(tmp_path / "host", lock_of)
    for folder, _, _ in os.walk(tmp_path):
        Path(folder).chmod(0o755)


def run_in(path: str, code: str) -> str:
    return subprocess.run([f"{path}/bin/python", "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_builds_stamps_and_then_does_nothing(house, make_wheel):
    spec = house.spec(make_wheel("alpha"), make_wheel("beta", "2.5"))
    built = ensure_release(spec, check=False)
    assert built["changed"] and built["missing"] == [] and built["removed"] == []
    assert "beta==2.5" in built["diff"]["after"]
    assert run_in(built["path"], "import alpha, beta; print(alpha.VERSION, beta.VERSION)") == "1.0 2.5"
    stamp = json.loads((Path(built["path"]) / "specswap-release.json").read_text())
    assert stamp["packages"] == {"alpha": "1.0", "beta": "2.5"}
    assert stamp["lock_sha256"][:12] == spec["release"].rsplit("-", 1)[1]
    assert (
        stamp["python"] == built["python"] == run_in(built["path"], "import platform; print(platform.python_version())")
    )
    started = time.monotonic()
    again = ensure_release(spec, check=False)
    assert time.monotonic() - started < 0.3
    assert not again["changed"] and again["diff"] == {"before": "", "after": ""} and again["python"] == built["python"]


def test_release_is_compiled_and_nobody_may_write_it(house, make_wheel):
    path = Path(ensure_release(house.spec(make_wheel("alpha")), check=False)["path"])
    assert list(path.glob("lib/*/site-packages/alpha/__pycache__/*.pyc"))
    entries = [path, *path.rglob("*")]
    assert [entry for entry in entries if not entry.is_symlink() and entry.stat().st_mode & 0o222] == []
    assert not [entry for entry in entries if entry.is_dir() and entry.stat().st_mode & 0o555 != 0o555]
    assert sorted(entry.name for entry in path.parent.iterdir()) == [".lock", path.name]


def test_scripts_run_after_the_rename(house, make_wheel):
    info = "alpha-1.0.dist-info"
    files = {
        "alpha/__init__.py": "def main():\n    print('hello from', __file__)\n",
        f"{info}/entry_points.txt": "[console_scripts]\nalpha = alpha:main\n",
    }
    path = ensure_release(house.spec(make_wheel("alpha", files=files)), check=False)["path"]
    said = subprocess.run([f"{path}/bin/alpha"], capture_output=True, text=True, check=True).stdout
    assert said.startswith(f"hello from {path}/lib")


def test_check_mode_touches_nothing(house, make_wheel):
    spec = house.spec(make_wheel("alpha"))
    result = ensure_release(spec, check=True)
    assert result["changed"] and "alpha==1.0" in result["diff"]["after"]
    assert not Path(spec["envs"]).exists()


def test_missing_and_damaged_wheels_are_named_and_nothing_is_built(house, make_wheel):
    alpha, beta = make_wheel("alpha"), make_wheel("beta")
    spec = house.spec(alpha, beta, stock=False)
    assert ensure_release(spec, check=False)["missing"] == [alpha.name, beta.name]
    shutil.copy(alpha.path, spec["wheelhouse"])
    (Path(spec["wheelhouse"]) / beta.name).write_bytes(b"damaged")
    result = ensure_release(spec, check=False)
    assert result["missing"] == [beta.name] and not result["changed"]
    assert not Path(result["path"]).exists()


def test_incoming_wheels_are_adopted(house, make_wheel):
    alpha = make_wheel("alpha")
    spec = house.spec(alpha, stock=False, incoming=str(alpha.path.parent))
    result = ensure_release(spec, check=False)
    assert result["changed"] and result["missing"] == []
    assert not alpha.path.exists() and (Path(spec["wheelhouse"]) / alpha.name).is_file()


def test_torn_builds_are_removed_and_built_again(house, make_wheel):
    spec = house.spec(make_wheel("alpha"))
    envs = Path(spec["envs"])
    for torn in (envs / spec["release"], envs / f".building-{spec['release']}"):
        torn.mkdir(parents=True)
        (torn / "half").write_text("of a file")
        torn.chmod(0o555)
    path = Path(ensure_release(spec, check=False)["path"])
    assert run_in(str(path), "import alpha; print(alpha.VERSION)") == "1.0"
    assert not (path / "half").exists() and not (envs / f".building-{spec['release']}").exists()


def test_a_package_that_does_not_import_is_no_release(house, make_wheel):
    spec = house.spec(make_wheel("alpha", files={"alpha/__init__.py": "import not_there\n"}))
    with pytest.raises(ReleaseError, match="alpha: ModuleNotFoundError: No module named 'not_there'"):
        ensure_release(spec, check=False)
    assert [entry.name for entry in Path(spec["envs"]).iterdir()] == [".lock"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda file: file.write_text("VERSION = 'edited, longer'\n"), r"alpha/__init__.py has \d+ bytes instead of"),
        (lambda file: file.write_text("VERSION = '1.1'\n"), r"alpha/__init__.py has other contents"),
        (lambda file: file.unlink(), r"alpha/__init__.py is gone"),
        (lambda file: (file.parent / "new.py").write_text("x"), r"alpha/new.py was added by hand"),
    ],
)
def test_an_edited_release_is_refused_with_the_file_and_the_way_out(house, make_wheel, change, words):
    spec = house.spec(make_wheel("alpha"))
    path = Path(ensure_release(spec, check=False)["path"])
    file = next(path.glob("lib/*/site-packages/alpha/__init__.py"))
    file.parent.chmod(0o755)
    file.chmod(0o644)
    change(file)
    with pytest.raises(ReleaseError, match=words) as caught:
        ensure_release(spec, check=False)
    assert f"remove {path}" in str(caught.value)


def test_full_verification_reads_what_the_quick_one_trusts(house, make_wheel):
    path = Path(ensure_release(house.spec(make_wheel("alpha")), check=False)["path"])
    file = next(path.glob("lib/*/site-packages/alpha/__init__.py"))
    before = file.stat()
    file.chmod(0o644)
    file.write_text("VERSION = '9.9'\n")
    assert file.stat().st_size == before.st_size
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert verify_release(path) == []
    assert verify_release(path, full=True) == [f"{file} has other contents"]


def test_touched_files_and_cached_bytecode_are_no_change(house, make_wheel):
    spec = house.spec(make_wheel("alpha"))
    path = Path(ensure_release(spec, check=False)["path"])
    file = next(path.glob("lib/*/site-packages/alpha/__init__.py"))
    os.utime(file)
    cache = file.parent / "__pycache__"
    cache.chmod(0o755)
    (cache / "__init__.cpython-311.opt-2.pyc").write_bytes(b"")
    assert not ensure_release(spec, check=False)["changed"]


def test_release_name_and_lock_must_agree(house, make_wheel):
    spec = house.spec(make_wheel("alpha"))
    with pytest.raises(ReleaseError, match="does not name its lock"):
        ensure_release({**spec, "lock_text": spec["lock_text"] + "\n"}, check=False)


def test_python_floor_names_what_was_found(house, make_wheel):
    with pytest.raises(ReleaseError, match=r"needs Python 3.19 or newer"):
        ensure_release(house.spec(make_wheel("alpha"), python="3.19"), check=False)
    only_old = make_wheel("gamma", tag="cp38-cp38-linux_x86_64")
    with pytest.raises(ReleaseError, match=r"no wheel of gamma for it"):
        ensure_release(house.spec(only_old), check=False)


def test_keeps_the_newest_and_whatever_is_used(house, make_wheel, tmp_path):
    made = []
    for version in ("1.0", "2.0", "3.0", "4.0", "5.0"):
        spec = house.spec(make_wheel("alpha", version), keep=99)
        made.append(Path(ensure_release(spec, check=False)["path"]))
    assert (house.root / "envs" / ".lock").stat().st_mode & 0o777 == 0o600
    other = ensure_release(house.spec(make_wheel("alpha"), environment="venv_test_more"), check=False)["path"]
    (house.root / "units" / "x.service").write_text(f"ExecStart={made[0]}/bin/python serve.py\n")
    (house.root / "state" / "smoke").mkdir()
    (house.root / "state" / "smoke" / "state.json").write_text(json.dumps({"argv": [f"{made[1]}/bin/python"]}))
    running = subprocess.Popen([f"{made[2]}/bin/python", "-c", "import time; time.sleep(60)"])
    try:
        spec = house.spec(make_wheel("alpha", "5.0"), keep=1)
        dry = ensure_release(spec, check=True)
        assert dry["removed"] == [made[3].name] and made[3].is_dir()
        assert ensure_release(spec, check=False)["removed"] == [made[3].name]
    finally:
        running.kill()
        running.wait()
    assert [path.is_dir() for path in made] == [True, True, True, False, True]
    assert Path(other).is_dir()
    assert ensure_release(spec, check=False)["removed"] == [made[2].name]


def test_uv_comes_from_its_wheel_once(house, make_wheel):
    script = f'#!/bin/sh\nexec {uv.find_uv_bin()} "$@"\n'
    tool = make_wheel("uv", "0.1", {"uv-0.1.data/scripts/uv": script}, tag="py3-none-any")
    alpha = make_wheel("alpha")
    place = house.root / "bin" / "uv"
    spec = house.spec(alpha, uv=str(place))
    shutil.copy(tool.path, spec["wheelhouse"])
    spec["wheels"][tool.name] = tool.sha256
    assert ensure_release(spec, check=False)["changed"]
    assert place.read_text() == script and os.access(place, os.X_OK)
    assert json.loads(place.with_name("uv.json").read_text()) == {"wheel": tool.name, "sha256": tool.sha256}


def test_another_build_is_waited_for_but_not_for_ever(house, make_wheel, monkeypatch):
    monkeypatch.setattr(release, "_BUILD_PATIENCE_S", 0.1)
    envs = house.root / "envs"
    envs.mkdir()
    with (envs / ".lock").open("w") as stuck:
        fcntl.flock(stuck, fcntl.LOCK_EX)
        with pytest.raises(ReleaseError, match=r"\.lock: another run has built releases .*fuser -v"):
            ensure_release(house.spec(make_wheel("alpha")), check=False)


def test_root_runs_no_python_from_path_or_from_where_it_stands(house, make_wheel, tmp_path, monkeypatch):
    trap = tmp_path / "trap"
    trap.mkdir()
    for minor in range(9, 20):
        (trap / f"python3.{minor}").write_text(f"#!/bin/sh\necho ran >> {tmp_path / 'ran'}\nexit 1\n")
        (trap / f"python3.{minor}").chmod(0o755)
    monkeypatch.chdir(trap)
    monkeypatch.setenv("PATH", f"{trap}::{os.environ['PATH']}")
    ensure_release(house.spec(make_wheel("alpha")), check=False)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["atomic", "release", "wheels", "models", "units", "toolkit", "facts"])
def test_code_for_the_target_is_python_39(name):
    file = Path(release.__file__).with_name(f"{name}.py")
    ast.parse(file.read_text(), str(file), feature_version=(3, 9))
