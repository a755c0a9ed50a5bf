"""Documentation of the action plugin comparison."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: comparison
short_description: Compare two variants by pairs of swap and measurement
version_added: 0.1.0
author: The specswap maintainers
description:
  - Submits a job that swaps between the arms in the order A B B A, measures the same prompts each time, and swaps back
    to the variant that was active before.
  - Writes C(comparison.json), C(report.md) and C(report.html) on the controller in a folder of their own, never over
    an older result, and lets C(latest) point to it.
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them.
    type: list
    elements: dict
    required: true
  slot:
    description: The slot. May be left out when the host has only one.
    type: str
  arms:
    description: Two different variants, as a list or as text separated by a comma.
    type: raw
    required: true
  pairs:
    description: Pairs of blocks; four or more are needed for an interval.
    type: int
    default: 6
  quick:
    description: Fewer prompts, for trying things out.
    type: bool
    default: false
  suite:
    description: Prompt suite, or the path of a C(.jsonl) file on the controller.
    type: str
    default: story
  max_tokens:
    description: Upper limit of a reply in tokens.
    type: int
    default: 256
  temperature:
    description: Sampling temperature; V(0) makes replies comparable.
    type: float
    default: 0
  release_path:
    description: The release of C(venv_bench) on the host.
    type: str
    required: true
  results_dir:
    description: Where results are written on the controller. Empty means C(results) of the clone.
    type: str
    default: ""
  reconnect_s:
    description: Seconds for which a lost connection is tried again. The job goes on meanwhile.
    type: float
    default: 600
attributes:
  diff_mode:
    support: none
    description: Nothing on the host differs afterwards.
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Which one is faster
  specswap.core.comparison:
    services: "{{ specswap_inventory | specswap.core.services }}"
    arms: [baseline, ngram]
    release_path: "{{ (specswap_inventory | specswap.core.releases('venv_bench') | first).path }}"
"""

RETURN = r"""
slot:
  description: The slot.
  returned: not in check mode
  type: str
job:
  description: The job's name; its journal and plan are on the host.
  returned: not in check mode
  type: str
outcome:
  description: V(compared) or why not.
  returned: not in check mode
  type: str
exit_code:
  description: What C(specswap-host) exits with for this outcome.
  returned: not in check mode
  type: int
seconds:
  description: Seconds from accepting the job to its end.
  returned: not in check mode
  type: float
downtime_s:
  description: Seconds between the last proof of the old variant and the first completion of the new one.
  returned: when something was stopped
  type: float
active:
  description: The variant that serves at the end, null when none does.
  returned: not in check mode
  type: str
cause:
  description: What went wrong, classified, with the proof. Only with C(-v); the message has it.
  returned: when the outcome is a failure
  type: raw
advice:
  description: What to do about it. Only with C(-v); the message has it.
  returned: when the outcome is a failure
  type: str
report:
  description: Evidence of the failure, such as log lines and the first traceback. Only with C(-v).
  returned: when the outcome is a failure
  type: dict
verdict:
  description: Word, ratio, interval and text.
  returned: when the session was brought home
  type: dict
results:
  description: The folder on the controller.
  returned: when the session was brought home
  type: str
"""
