"""All faults, in the order of the table."""

from __future__ import annotations

import catalogue_answers
import catalogue_control
import catalogue_host
import catalogue_process

FAULTS = [
    *catalogue_process.FAULTS,
    *catalogue_answers.FAULTS,
    *catalogue_host.FAULTS,
    *catalogue_control.FAULTS,
]
