"""`./specswap lock`: compiles locks, or says whether they still are what their sources give."""

from __future__ import annotations

import argparse
from collections.abc import Callable

from specswap.errors import ConsoleError
from specswap.locks import compile_lock, compile_uv_lock
from specswap.paths import Paths


def run_lock(arguments: argparse.Namespace, paths: Paths, say: Callable[[str], None]) -> int:
    """Compiles one lock, or every lock there is a source for; returns the console's exit code.

    Raises:
        ConsoleError: there is no source of that name.
        LockError: uv finds no solution, or with `--check` a lock is stale.
    """
    for environment, flavour, python, glibc in chosen(arguments, paths):
        if environment == "uv":
            path = compile_uv_lock(arguments.check, root=paths.root, upgrade=arguments.upgrade)
        else:
            path = compile_lock(
                environment, flavour, python, glibc, arguments.check, root=paths.root, upgrade=arguments.upgrade
            )
        say(f"{'up to date' if arguments.check else 'compiled'}: {paths.shown(path)}")
    return 0


def chosen(arguments: argparse.Namespace, paths: Paths) -> list[tuple[str, str, str, str]]:
    """(environment, flavour, python, glibc) of every lock to compile."""
    environment: str | None = arguments.environment
    if environment is not None:
        known = sorted(path.name for path in (paths.root / "locks").iterdir() if path.is_dir())
        if environment not in [*known, "uv"]:
            raise ConsoleError(
                f"locks/{environment} does not exist", f"Known: {', '.join([*known, 'uv'])}", exit_code=2
            )
        return [(environment, arguments.flavour, arguments.python, arguments.glibc)]
    found = [("uv", "", "", "")]
    for source in sorted((paths.root / "locks").glob("*/*.in")):
        # The name says it all: cpu-py311-glibc2.28.in
        flavour, python, glibc = source.stem.rsplit("-", 2)
        digits = python.removeprefix("py")
        found.append((source.parent.name, flavour, f"{digits[0]}.{digits[1:]}", glibc.removeprefix("glibc")))
    return found
