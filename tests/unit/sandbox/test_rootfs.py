"""The recipe of the root file system: where packages come from, what the cache key covers, how a build breaks off."""

from __future__ import annotations

import dataclasses
import threading
import time
from pathlib import Path

import pytest
from specswap_sandbox import rootfs
from specswap_sandbox.errors import SandboxError
from specswap_sandbox.rootfs import AptSource, Recipe, build_argv, cache_folder, choose_source, parse_os_release

DEBIAN = "/usr/share/keyrings/debian-archive-keyring.gpg"
UBUNTU = "/usr/share/keyrings/ubuntu-archive-keyring.gpg"
DEB822 = "Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\nComponents: main\n"
RECIPE = Recipe(AptSource("bookworm", DEB822, deb822=True), "x86_64")


def content(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_debian_builds_from_its_own_source() -> None:
    source = choose_source(
        {"ID": "debian", "VERSION_CODENAME": "bookworm"}, {"/etc/apt/sources.list.d/debian.sources": DEB822}, {}
    )
    assert source == AptSource("bookworm", DEB822, deb822=True)


def test_ubuntu_with_an_empty_sources_list_builds_from_its_sources_file() -> None:
    text = "Types: deb\nURIs: http://mirror.example/ubuntu\nSuites: noble\nComponents: main universe\n"
    files = {"/etc/apt/sources.list": "# moved\n", "/etc/apt/sources.list.d/ubuntu.sources": text}
    source = choose_source({"ID": "ubuntu", "VERSION_CODENAME": "noble"}, files, {})
    assert (source.suite, source.text, source.deb822) == ("noble", text, True)


def test_an_old_one_line_source_is_used() -> None:
    line = "deb [arch=amd64] http://mirror.example/ubuntu jammy main universe\n"
    source = choose_source({"ID": "ubuntu", "VERSION_CODENAME": "jammy"}, {"/etc/apt/sources.list": line}, {})
    assert source == AptSource("jammy", line, deb822=False)


def test_a_derivative_builds_the_release_it_descends_from() -> None:
    release = {"ID": "linuxmint", "VERSION_CODENAME": "wilma", "UBUNTU_CODENAME": "noble"}
    own = {"/etc/apt/sources.list": "deb http://mint.example wilma main\n"}
    source = choose_source(release, own, {UBUNTU: True}, "http://mirror.example/ubuntu")
    assert source.suite == "noble"
    assert f"signed-by={UBUNTU}" in source.text and "mint" not in source.text


def test_another_distribution_builds_debian_when_it_has_the_keyring() -> None:
    source = choose_source({"ID": "fedora"}, {}, {DEBIAN: True}, "http://mirror.example/debian")
    assert source.suite == "bookworm" and " http://mirror.example/debian " in source.text
    with pytest.raises(SandboxError, match="SPECSWAP_APT_MIRROR"):
        choose_source({"ID": "fedora"}, {}, {DEBIAN: True})
    with pytest.raises(SandboxError, match="debian-archive-keyring"):
        choose_source({"ID": "fedora"}, {}, {})


def test_os_release_values_lose_their_quotes() -> None:
    assert parse_os_release('# c\nID=debian\nVERSION_CODENAME="bookworm"\n\n') == {
        "ID": "debian",
        "VERSION_CODENAME": "bookworm",
    }


@pytest.mark.parametrize(
    "change",
    [
        {"packages": ("python3",)},
        {"hooks": ()},
        {"dpkg_options": ()},
        {"apt_options": ()},
        {"architecture": "aarch64"},
        {"source": AptSource("trixie", DEB822, deb822=True)},
        {"source": AptSource("bookworm", DEB822 + " ", deb822=True)},
    ],
)
def test_every_part_of_the_recipe_changes_the_key(change: dict[str, object]) -> None:
    assert dataclasses.replace(RECIPE, **change).key() != RECIPE.key()  # type: ignore[arg-type]


def test_equal_recipes_share_a_key() -> None:
    assert RECIPE.key() == dataclasses.replace(RECIPE).key()
    assert len(RECIPE.key()) == 12


def test_the_build_command_names_suite_target_and_source_last() -> None:
    argv = build_argv(RECIPE, Path("/w/source.sources"), Path("/w/tree"))
    assert argv[-3:] == ["bookworm", "/w/tree", "/w/source.sources"]
    assert f"--include={','.join(RECIPE.packages)}" in argv
    assert sum(word.startswith("--customize-hook=") for word in argv) == len(RECIPE.hooks)


def test_the_cache_follows_the_environment(tmp_path: Path) -> None:
    assert cache_folder({"SPECSWAP_CACHE": str(tmp_path / "c"), "HOME": "/h"}) == tmp_path / "c"
    assert cache_folder({"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/specswap")
    assert cache_folder({"HOME": "/h"}) == Path("/h/.cache/specswap")


@pytest.fixture
def fake_mmdebstrap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program in place of mmdebstrap: counts its runs, waits, makes the target; fails when `fail` exists."""
    program = tmp_path / "mmdebstrap"
    program.write_text(
        "#!/bin/sh\n"
        f'echo run >> "{tmp_path}/runs"\n'
        'for word in "$@"; do target=$previous; previous=$word; done\n'
        'mkdir "$target"; sleep 0.3\n'
        f'if [ -e "{tmp_path}/fail" ]; then echo "E: no mirror"; exit 25; fi\n'
        'touch "$target/done"\n'
    )
    program.chmod(0o755)
    real = rootfs.build_argv
    monkeypatch.setattr(rootfs, "build_argv", lambda *words: [str(program), *real(*words)[1:]])
    return tmp_path


def test_concurrent_callers_share_one_build(fake_mmdebstrap: Path) -> None:
    trees: list[Path] = []
    cache = fake_mmdebstrap / "cache"

    def build() -> None:
        trees.append(rootfs.ensure(lambda _: None, cache=cache, recipe=RECIPE))

    threads = [threading.Thread(target=build) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert trees == [cache / "sandbox" / f"rootfs-{RECIPE.key()}"] * 3
    assert (trees[0] / "done").exists()
    assert (fake_mmdebstrap / "runs").read_text() == "run\n"
    assert content(cache / "sandbox") == [trees[0].name]


def test_a_failed_build_is_told_and_leaves_nothing(fake_mmdebstrap: Path) -> None:
    (fake_mmdebstrap / "fail").touch()
    cache = fake_mmdebstrap / "cache"
    with pytest.raises(SandboxError, match="no mirror"):
        rootfs.ensure(lambda _: None, cache=cache, recipe=RECIPE)
    assert content(cache / "sandbox") == []
    (fake_mmdebstrap / "fail").unlink()
    assert (rootfs.ensure(lambda _: None, cache=cache, recipe=RECIPE) / "done").exists()


def test_half_builds_of_a_killed_caller_are_removed(fake_mmdebstrap: Path) -> None:
    cache = fake_mmdebstrap / "cache"
    (cache / "sandbox" / "building-old" / "tree").mkdir(parents=True)
    rootfs.ensure(lambda _: None, cache=cache, recipe=RECIPE)
    assert content(cache / "sandbox") == [f"rootfs-{RECIPE.key()}"]


def test_a_cached_tree_is_returned_at_once(fake_mmdebstrap: Path) -> None:
    cache = fake_mmdebstrap / "cache"
    rootfs.ensure(lambda _: None, cache=cache, recipe=RECIPE)
    said: list[str] = []
    started = time.monotonic()
    rootfs.ensure(said.append, cache=cache, recipe=RECIPE)
    assert said == [] and time.monotonic() - started < 0.2
