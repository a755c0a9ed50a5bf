"""Files that travel from the controller's wheelhouse to a host which has no way to fetch them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from . import resolve
from .job import HostCommandError

if TYPE_CHECKING:
    from .action import Action


class Wheelhouse:
    """Folders `<root>/<12 digits of a hash>/` with wheels and an `index.json`, as `./specswap wheelhouse` makes."""

    def __init__(self, root: str = "") -> None:
        """`root` may be empty for the default place."""
        self.root = Path(root) if root else resolve.home() / ".specswap" / "wheelhouse"

    def wheels(self, *hashes: str) -> dict[str, str] | None:
        """File name -> SHA-256 of all wheels in the folders of `hashes`; None when one of them is not there."""
        found: dict[str, str] = {}
        for digest in hashes:
            try:
                index = json.loads((self.root / digest / "index.json").read_text(encoding="utf-8"))
            except FileNotFoundError:
                return None
            found.update({name: entry["sha256"] for name, entry in index.items()})
        return found

    def files(self, names: Iterable[str], *hashes: str) -> list[Path]:
        """Where the files called `names` lie; HostCommandError for one that is not there."""
        found = []
        for name in names:
            places = [self.root / digest / name for digest in hashes]
            here = next((place for place in places if place.is_file()), None)
            if here is None:
                raise self.lacking(name)
            found.append(here)
        return found

    def lacking(self, what: str) -> HostCommandError:
        """The error for `what`, with the way out."""
        return HostCommandError(
            f"The host lacks {what}, and so does the controller's wheelhouse {self.root}. "
            "Fetch it with ./specswap wheelhouse, then run this again."
        )


def push(action: Action, files: list[Path]) -> str:
    """Copy files to the task's own temporary folder on the host and return its path; it is removed with the task."""
    folder = str(action._make_tmp_path())
    for file in files:
        action.say(f"sending {file.name} ({file.stat().st_size / 1e6:.1f} MB)")
        action._transfer_file(str(file), f"{folder}/{file.name}")
    # What an unprivileged login wrote must be readable to the task's own user.
    action._fixup_perms2((folder, *(f"{folder}/{file.name}" for file in files)), execute=False)
    return folder
