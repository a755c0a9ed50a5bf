"""The errors that the console reports without a traceback."""

from __future__ import annotations


class ConsoleError(Exception):
    """An expected failure: one line that says what is wrong, one that says the way out.

    Args:
        what: names the key, file or host that is wrong.
        way_out: what to type or change; printed on a line of its own.
        exit_code: exit status of the console, 1 unless a host job's outcome is passed on.
    """

    def __init__(self, what: str, way_out: str, exit_code: int = 1) -> None:
        super().__init__(what)
        self.what = what
        self.way_out = way_out
        self.exit_code = exit_code
