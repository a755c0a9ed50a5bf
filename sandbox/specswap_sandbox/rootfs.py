"""The root file system that all hosts share: built once with mmdebstrap, cached under a key made of its recipe."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import SandboxError
from .shell import locked_folder, run

Progress = Callable[[str], None]

#: What a managed host has. Hosts have no way out, so packages that plays ask for must be here.
PACKAGES = (
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "openssh-server",
    "python3",
    "python3-apt",
    "sudo",
    "ca-certificates",
    "curl",
    "iproute2",
    "procps",
    "kmod",
    "rsync",
    "libgomp1",
)

#: Units without use in a host, or which would fail there and leave it `degraded`.
MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "e2scrub_reap.service",
    "fstrim.timer",
    "dpkg-db-backup.timer",
    "motd-news.timer",
    "systemd-timesyncd.service",
    "systemd-networkd-wait-online.service",
    "systemd-firstboot.service",
    "console-getty.service",
    "getty.target",
)

#: Shell lines, run by mmdebstrap with the tree as $1.
HOOKS = (
    # Identity is made per host: keys and machine-id must not be shared.
    'rm -f "$1"/etc/ssh/ssh_host_*; : > "$1/etc/machine-id"; rm -f "$1/var/lib/dbus/machine-id"',
    'chroot "$1" useradd --uid 1000 --create-home --shell /bin/bash --groups sudo ops',
    'echo "ops ALL=(ALL) NOPASSWD:ALL" > "$1/etc/sudoers.d/ops"; chmod 440 "$1/etc/sudoers.d/ops"',
    'printf "%s\\n" "UseDNS no" "PasswordAuthentication no" "PermitRootLogin no" "MaxStartups 100"'
    ' "AuthorizedKeysFile /etc/ssh/authorized_keys/%u .ssh/authorized_keys"'
    ' > "$1/etc/ssh/sshd_config.d/sandbox.conf"',
    # With this folder journald keeps the previous boots, as tests of crashes want to read them.
    'mkdir -p "$1/var/log/journal" "$1/etc/systemd/journald.conf.d"',
    'printf "[Journal]\\nSystemMaxUse=64M\\n" > "$1/etc/systemd/journald.conf.d/sandbox.conf"',
    f'chroot "$1" systemctl mask {" ".join(MASKED_UNITS)} > /dev/null',
    'chroot "$1" systemctl disable ssh.socket > /dev/null 2>&1 || true',
    'chroot "$1" systemctl enable ssh.service > /dev/null 2>&1',
    'rm -rf "$1"/var/lib/apt/lists/* "$1"/var/cache/apt/*.bin',
)

DPKG_OPTIONS = (
    "force-unsafe-io",
    "path-exclude=/usr/share/doc/*",
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
)

APT_OPTIONS = ('Acquire::Languages "none"', 'Acquire::Retries "3"')


@dataclass(frozen=True)
class AptSource:
    """Where packages come from: the suite, and either a file in apt's own format or its text."""

    suite: str
    text: str
    deb822: bool


@dataclass(frozen=True)
class Recipe:
    """All that decides the content of the root file system; two equal recipes share one cached tree."""

    source: AptSource
    architecture: str
    packages: tuple[str, ...] = PACKAGES
    hooks: tuple[str, ...] = HOOKS
    dpkg_options: tuple[str, ...] = DPKG_OPTIONS
    apt_options: tuple[str, ...] = APT_OPTIONS

    def key(self) -> str:
        """12 hexadecimal digits over the whole recipe."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:12]


# Names the archive to build from on machines that are neither Debian nor Ubuntu.
MIRROR_VARIABLE = "SPECSWAP_APT_MIRROR"


def cache_folder(env: Mapping[str, str] | None = None) -> Path:
    """$SPECSWAP_CACHE, else $XDG_CACHE_HOME/specswap, else ~/.cache/specswap."""
    env = os.environ if env is None else env
    if env.get("SPECSWAP_CACHE"):
        return Path(env["SPECSWAP_CACHE"]).absolute()
    base = env.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path(env.get("HOME") or Path.home()) / ".cache").absolute() / "specswap"


def parse_os_release(text: str) -> dict[str, str]:
    """The KEY=value lines of os-release, without quotes."""
    pairs = (line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    return {key.strip(): value.strip().strip("\"'") for key, value in pairs}


def _has_entries(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return any(line.startswith(("deb ", "deb\t", "deb[", "URIs:")) for line in lines)


def choose_source(
    os_release: Mapping[str, str], files: Mapping[str, str], keyrings: Mapping[str, bool], mirror: str = ""
) -> AptSource:
    """The apt source to build from.

    `files` maps paths of apt source files to their text, `keyrings` says which keyring files exist. Debian and Ubuntu
    build from their own source, so that mirrors and keys which the administrator chose are used. Derivatives build the
    release they descend from, others Debian 12, each when the keyring is there. Raises SandboxError otherwise.
    """
    system = os_release.get("ID", "")
    if system in ("debian", "ubuntu"):
        suite = os_release.get("VERSION_CODENAME", "")
        for path in (f"/etc/apt/sources.list.d/{system}.sources", "/etc/apt/sources.list"):
            text = files.get(path, "")
            if suite and _has_entries(text):
                return AptSource(suite, text, deb822=path.endswith(".sources"))
    ubuntu, debian = "/usr/share/keyrings/ubuntu-archive-keyring.gpg", "/usr/share/keyrings/debian-archive-keyring.gpg"
    if suite := os_release.get("UBUNTU_CODENAME", "") or (
        os_release.get("VERSION_CODENAME", "") if system == "ubuntu" else ""
    ):
        name, keyring, parts = "Ubuntu", ubuntu, "main universe"
    else:
        suite = os_release.get("DEBIAN_CODENAME", "") or "bookworm"
        name, keyring, parts = "Debian", debian, "main"
    if not keyrings.get(keyring):
        raise SandboxError(
            f"no apt source for the hosts' root file system: no Debian or Ubuntu source in /etc/apt, no {keyring}; "
            f"install the package {'ubuntu-keyring' if keyring == ubuntu else 'debian-archive-keyring'}"
        )
    if not mirror:
        raise SandboxError(
            f"no apt source for the hosts' root file system: /etc/apt has none of Debian or Ubuntu; "
            f"set {MIRROR_VARIABLE} to the address of a {name} archive that holds {suite}"
        )
    return AptSource(suite, f"deb [signed-by={keyring}] {mirror} {suite} {parts}\n", deb822=False)


def machine_recipe() -> Recipe:
    """The recipe for this machine, read from /etc/os-release and /etc/apt."""
    files = {}
    for path in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.sources")):
        if path.is_file():
            files[str(path)] = path.read_text(encoding="utf-8", errors="replace")
    release = Path("/etc/os-release")
    names = ("debian-archive-keyring", "ubuntu-archive-keyring")
    paths = [f"/usr/share/keyrings/{name}.gpg" for name in names]
    source = choose_source(
        parse_os_release(release.read_text(encoding="utf-8")) if release.exists() else {},
        files,
        {path: Path(path).exists() for path in paths},
        os.environ.get(MIRROR_VARIABLE, ""),
    )
    return Recipe(source, platform.machine())


def build_argv(recipe: Recipe, source_file: Path, target: Path) -> list[str]:
    """The mmdebstrap command that builds `recipe` into the folder `target`."""
    argv = ["mmdebstrap", "--quiet", "--mode=root", "--format=directory", "--variant=minbase"]
    argv.append(f"--include={','.join(recipe.packages)}")
    argv += [f"--aptopt={option}" for option in recipe.apt_options]
    argv += [f"--dpkgopt={option}" for option in recipe.dpkg_options]
    argv += [f"--customize-hook={hook}" for hook in recipe.hooks]
    return [*argv, recipe.source.suite, str(target), str(source_file)]


def _build_env() -> dict[str, str]:
    """Our environment plus the proxy that the machine's apt uses; mmdebstrap does not read the machine's apt.conf."""
    env = {"LC_ALL": "C.UTF-8", **os.environ, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    if "http_proxy" not in env and shutil.which("apt-config"):
        proxy = run(["apt-config", "shell", "VALUE", "Acquire::http::Proxy"], check=False).stdout.strip()
        if proxy.startswith("VALUE='") and proxy != "VALUE=''":
            env["http_proxy"] = proxy.removeprefix("VALUE='").removesuffix("'")
    return env


def ensure(progress: Progress, *, cache: Path | None = None, recipe: Recipe | None = None) -> Path:
    """The path of the root file system of this machine's recipe; builds it when the cache has none.

    `progress` gets a line every 5 seconds while mmdebstrap runs. Concurrent callers wait for one build. A build that
    broke off leaves nothing that a later call takes for a tree. Raises SandboxError with mmdebstrap's last lines.
    """
    recipe = recipe or machine_recipe()
    folder = (cache or cache_folder()) / "sandbox"
    tree = folder / f"rootfs-{recipe.key()}"
    if tree.is_dir():
        return tree
    progress(f"root file system {recipe.source.suite} is not cached yet: building it in {folder} (about 250 MB)")
    with locked_folder(folder) as lock:
        if tree.is_dir():
            return tree
        for half_built in folder.glob("building-*"):
            shutil.rmtree(half_built, ignore_errors=True)
        workplace = Path(tempfile.mkdtemp(prefix="building-", dir=folder))
        workplace.chmod(0o755)
        try:
            _build(recipe, workplace, lock, progress)
            (workplace / "tree").rename(tree)
        finally:
            shutil.rmtree(workplace, ignore_errors=True)
    return tree


def _build(recipe: Recipe, workplace: Path, lock: int, progress: Progress) -> None:
    source_file = workplace / ("source.sources" if recipe.source.deb822 else "source.list")
    source_file.write_text(recipe.source.text, encoding="utf-8")
    log = workplace / "log"
    started = time.monotonic()
    with log.open("w", encoding="utf-8") as stream:
        # The lock's descriptor goes along: should we be killed, mmdebstrap keeps the lock until it ends.
        process = subprocess.Popen(
            build_argv(recipe, source_file, workplace / "tree"),
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            env=_build_env(),
            umask=0o022,
            pass_fds=[lock],
        )
        try:
            while True:
                try:
                    code = process.wait(timeout=5.0)
                    break
                except subprocess.TimeoutExpired:
                    progress(f"root file system: building, {time.monotonic() - started:.0f} s")
        except BaseException:
            process.terminate()
            try:
                process.wait(timeout=10.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            raise
    if code != 0:
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-8:])
        raise SandboxError(
            f"mmdebstrap ended with {code}; its last lines:\n{tail}\nIs the apt source of this machine reachable?"
        )
    progress(f"root file system: built in {time.monotonic() - started:.0f} s")
