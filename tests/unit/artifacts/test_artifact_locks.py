"""Locks by the real uv and wheelhouses by the real pip, both from a folder of wheels instead of an index."""

import json
import os

import pytest

from specswap import wheelhouse
from specswap.locks import (
    LockError,
    compile_lock,
    compile_uv_lock,
    known_locks,
    lock_hash,
    lock_path,
    parse_lock,
)
from specswap.wheelhouse import WheelhouseError, ensure_uv, ensure_wheel, ensure_wheelhouse, is_complete


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A checkout whose only index is the folder of test wheels."""
    links = tmp_path / "wheels"
    links.mkdir()
    for name in [name for name in os.environ if name.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    settings = {"PIP_CONFIG_FILE": "/dev/null", "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": links}
    settings.update(UV_NO_CONFIG="1", UV_OFFLINE="1", UV_FIND_LINKS=links, UV_CACHE_DIR=tmp_path / "cache")
    for name, value in settings.items():
        monkeypatch.setenv(name, str(value))
    root = tmp_path / "checkout"
    (root / "locks" / "venv_test").mkdir(parents=True)
    return root


def write_source(root, text):
    (root / "locks" / "venv_test" / "cpu-py311-glibc2.28.in").write_text(text)


def compile_test(root, **more):
    return compile_lock("venv_test", "cpu", "3.11", "2.28", root=root, **more)


def test_lock_is_exact_hashed_and_stable(root, make_wheel):
    alpha = make_wheel("alpha", "1.0")
    write_source(root, "alpha\n")
    lock = compile_test(root)
    assert lock == root / "locks/venv_test/cpu-py311-glibc2.28.txt" and known_locks(root) == [lock]
    pin = parse_lock(lock)["alpha"]
    assert pin.version == "1.0" and pin.sha256 == {alpha.sha256}
    assert "./specswap lock venv_test" in lock.read_text() and str(root) not in lock.read_text()
    first = lock_hash(lock)
    make_wheel("alpha", "2.0")
    assert lock_hash(compile_test(root, check=True)) == first
    assert parse_lock(compile_test(root, upgrade=True))["alpha"].version == "2.0"


def test_check_tells_a_stale_lock_and_writes_nothing(root, make_wheel):
    make_wheel("alpha", "1.0")
    make_wheel("beta", "1.0")
    write_source(root, "alpha\n")
    with pytest.raises(LockError, match=r"run `\./specswap lock venv_test`"):
        compile_test(root, check=True)
    lock = compile_test(root)
    write_source(root, "alpha\nbeta\n")
    before = lock.read_text()
    with pytest.raises(LockError, match="is not what"):
        compile_test(root, check=True)
    assert lock.read_text() == before


def test_lock_errors_name_file_and_way_out(root):
    with pytest.raises(LockError, match=r"no source .*cpu-py311-glibc2\.28\.in"):
        compile_test(root)
    write_source(root, "alpha==9\n")
    with pytest.raises(LockError, match=r"(?s)no lock could be made.*alpha"):
        compile_test(root)
    with pytest.raises(LockError, match=r"make it with `\./specswap lock venv_test`"):
        lock_hash(lock_path(root, "venv_test", "cpu", "3.11", "2.28"))
    with pytest.raises(LockError, match=r"write it like 3\.11"):
        lock_path(root, "venv_test", "cpu", "3.11.2", "2.28")


def test_wheelhouse_is_filled_once_for_every_python(root, make_wheel, lock_of):
    bounds = [make_wheel("bound", tag=f"cp3{minor}-cp3{minor}-manylinux_2_17_x86_64") for minor in (11, 12, 14)]
    others = [make_wheel("alpha"), make_wheel("stable", tag="cp310-abi3-manylinux2014_x86_64")]
    hashes = "".join(f" --hash=sha256:{wheel.sha256}" for wheel in bounds)
    lock, said = lock_path(root, "venv_test", "cpu", "3.11", "2.28"), []
    lock.write_text(lock_of(*others) + f"bound==1.0{hashes}\n")
    folder = ensure_wheelhouse(lock, root, said.append)
    assert folder == root / ".specswap/wheelhouse" / lock_hash(lock) and is_complete(folder)
    index = json.loads((folder / "index.json").read_text())
    assert index.keys() == {wheel.name for wheel in bounds + others}
    assert any("no wheel of bound for Python 3.13" in line for line in said)
    assert all(index[name]["size"] == (folder / name).stat().st_size for name in index)
    said.clear()
    assert ensure_wheelhouse(lock, root, said.append) == folder and said == []


def test_a_torn_wheelhouse_is_completed(root, make_wheel):
    make_wheel("alpha")
    write_source(root, "alpha\n")
    lock = compile_test(root)
    folder = ensure_wheelhouse(lock, root, lambda line: None)
    wheel = next(folder.glob("*.whl"))
    whole = wheel.read_bytes()
    wheel.write_bytes(whole[:10])
    (folder / "stray.whl").write_bytes(b"")
    assert not is_complete(folder)
    ensure_wheelhouse(lock, root, lambda line: None)
    assert wheel.read_bytes() == whole and not (folder / "stray.whl").exists()


def test_a_wheel_that_is_not_the_locked_one_does_not_come_in(root, make_wheel):
    make_wheel("alpha")
    write_source(root, "alpha\n")
    lock = compile_test(root)
    make_wheel("alpha", files={"alpha/__init__.py": "VERSION = 'someone else'\n"})
    with pytest.raises(WheelhouseError, match="pip could not download alpha"):
        ensure_wheelhouse(lock, root, lambda line: None)
    assert not wheelhouse.wheelhouse_path(lock, root).exists()


def test_single_wheels_and_uv(root, make_wheel):
    model = make_wheel("weights", files={"weights/tiny.gguf": b"GGUF"})
    path = ensure_wheel("weights", "1.0", model.sha256, root, lambda line: None)
    assert path == root / ".specswap/wheelhouse" / model.sha256[:12] / model.name
    with pytest.raises(WheelhouseError, match="64 hex digits"):
        ensure_wheel("weights", "1.0", "abc", root)
    make_wheel("uv", "0.1", tag="py3-none-manylinux_2_17_x86_64")
    (root / "locks" / "uv.in").write_text("uv\n")
    compile_uv_lock(root=root)
    folder = ensure_uv(root, lambda line: None)
    assert (root / ".specswap/wheelhouse/uv").resolve() == folder
    assert [path.name for path in folder.glob("*.whl")] == ["uv-0.1-py3-none-manylinux_2_17_x86_64.whl"]


def test_main_tells_the_error_and_fails(root):
    said = []
    assert wheelhouse.main_wheelhouse([root / "locks/none.txt"], root, progress=said.append) == 1
    assert said[-1].startswith("error: no lock")


def test_platform_tags_reach_from_the_floor_downwards():
    tags = wheelhouse.platform_tags(28)
    assert tags[0] == "manylinux_2_28_x86_64" and "manylinux_2_29_x86_64" not in tags and "manylinux1_x86_64" in tags
