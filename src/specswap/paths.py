"""Where things lie in a clone, on the controller."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from specswap.errors import ConsoleError

#: What a clone always has; tells a clone from an installed package without the plays.
MARKERS = ("site.yml", "ansible.cfg", "pyproject.toml")


@dataclass(frozen=True)
class Paths:
    """The folders of one clone; everything that is made lies in `work`, `results` or the environment."""

    root: Path

    @property
    def work(self) -> Path:
        """`.specswap/`: wheelhouse, uv, environments for tests, logs of runs; git-ignored, safe to delete."""
        return self.root / ".specswap"

    @property
    def results(self) -> Path:
        """`results/`: one folder per comparison, `latest`, `bench/`."""
        return self.root / "results"

    @property
    def latest(self) -> Path:
        """`comparison.json` of the newest comparison."""
        return self.results / "latest" / "comparison.json"

    @property
    def runs(self) -> Path:
        """Logs of the plays that the console has started."""
        return self.work / "runs"

    @property
    def bin(self) -> Path:
        """Commands of the environment that runs this console."""
        return Path(sys.prefix) / "bin"

    def tool(self, name: str) -> str:
        """Path of a command of the locked environment.

        Raises:
            ConsoleError: the environment does not have it.
        """
        path = self.bin / name
        if not path.exists():
            raise ConsoleError(
                f"{name} is not in {self.bin}", "Run ./specswap once: it completes the environment from uv.lock."
            )
        return str(path)

    def shown(self, path: Path) -> str:
        """A path as a user would type it: relative when it lies below the current directory."""
        here = Path.cwd()
        return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


def find_paths() -> Paths:
    """The clone that this package was imported from.

    Raises:
        ConsoleError: the package is not part of a clone.
    """
    root = Path(__file__).resolve().parents[2]
    missing = [name for name in MARKERS if not (root / name).exists()]
    if missing:
        raise ConsoleError(
            f"{root} is not a clone of specswap: {', '.join(missing)} missing",
            "Start the console as ./specswap in a clone of the repository.",
        )
    return Paths(root)


def command_environment(paths: Paths) -> dict[str, str]:
    """The process environment for commands: the locked tools first on PATH, Ansible's settings from the clone."""
    environment = dict(os.environ)
    environment["PATH"] = f"{paths.bin}{os.pathsep}{environment.get('PATH', os.defpath)}"
    environment["ANSIBLE_CONFIG"] = str(paths.root / "ansible.cfg")
    # ansible-runner turns the check of host keys off wherever nobody asked for it.
    environment.setdefault("ANSIBLE_HOST_KEY_CHECKING", "True")
    # A console started with another environment active must not make uv or pip talk about that one.
    environment.pop("VIRTUAL_ENV", None)
    return environment
