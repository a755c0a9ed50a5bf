"""`./specswap check units`: every unit that an inventory declares, as systemd reads it."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from specswap.errors import ConsoleError
from specswap.paths import Paths
from specswap.plays import inventory_variables
from specswap.supplies import declared, resolver

#: Highest exposure, in tenths, that `systemd-analyze security` may give a unit: 2.5, which it calls OK.
THRESHOLD = 25
#: The programs of a unit are on the host and not here: this alone is no fault of the unit.
_ELSEWHERE = ("is not executable: No such file or directory", "command is not executable")


def check_units(paths: Paths, inventories: Sequence[Path], say: Callable[[str], None]) -> int:
    """Renders, verifies and rates all units; returns the console's exit code.

    Raises:
        ConsoleError: systemd-analyze is missing, or the inventory is refused.
    """
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        raise ConsoleError("systemd-analyze is not installed", "Type: sudo apt-get install systemd")
    resolve, render = resolver(paths), resolver(paths, "render")
    bad = checked = 0
    with tempfile.TemporaryDirectory(prefix="specswap-units-") as folder:
        for host, variables in inventory_variables(paths, inventories).items():
            data = declared(resolve, variables)
            if "slots" not in data:
                continue
            try:
                services = [render.with_unit_text(service) for service in resolve.services(data)]
            except ValueError as error:
                raise ConsoleError(f"host {host}: {error}", "Correct the inventory, then try again.") from error
            for service in services:
                unit = Path(folder) / str(service["unit"])
                unit.write_text(service["unit_text"], encoding="utf-8")
                problems = _verify(analyze, unit) + _rate(analyze, unit)
                checked += 1
                bad += bool(problems)
                say(f"{'FAILED' if problems else 'ok':7} {host}: {unit.name}")
                for problem in problems:
                    say(f"        {problem}")
    if not checked:
        raise ConsoleError(
            f"no host in {', '.join(map(str, inventories))} declares specswap_slots", "Name the inventory: -i PATH"
        )
    return 1 if bad else 0


def _verify(analyze: str, unit: Path) -> list[str]:
    done = subprocess.run([analyze, "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False)
    lines = [line for line in done.stderr.splitlines() if unit.name in line]
    return [line for line in lines if not any(mark in line for mark in _ELSEWHERE)]


def _rate(analyze: str, unit: Path) -> list[str]:
    done = subprocess.run(
        [analyze, "security", "--offline=true", f"--threshold={THRESHOLD}", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return []
    return [line.strip() for line in (done.stdout + done.stderr).splitlines() if "Overall exposure" in line] or [
        f"systemd-analyze security: {done.stderr.strip()}"
    ]
