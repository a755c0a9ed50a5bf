"""Documentation of the action plugin slot_swap."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: slot_swap
short_description: Swap a slot to a variant, through the health gate, or give it back
version_added: 0.1.0
author: The specswap maintainers
description:
  - Makes a complete plan on the controller and hands it to a job on the host, which survives the loss of the
    controller, keeps a journal and rolls back when the gate does not open.
  - Prints every event of the job at once, in the words that C(specswap-host) uses on the host.
  - Fails on every outcome but V(swapped) and V(noop), with the classified cause, the first traceback of this very
    start, and what to do.
  - In check mode it asks the host what the swap would change, stop and cost; nothing is touched.
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them.
    type: list
    elements: dict
    required: true
  variant:
    description: The variant that shall hold the slot.
    type: str
    required: true
  slot:
    description: The slot. May be left out when the host has only one.
    type: str
  after_toolkit:
    description:
      - An earlier task of the play installs the toolkit, so that in check mode a host without it is no failure.
    type: bool
    default: false
extends_documentation_fragment:
  - specswap.core.attributes
  - specswap.core.attributes.job
"""

EXAMPLES = r"""
- name: Serve the variant ngram
  specswap.core.slot_swap:
    services: "{{ specswap_inventory | specswap.core.services }}"
    slot: smoke
    variant: ngram
"""

RETURN = r"""
variant:
  description: The variant asked for.
  returned: always
  type: str
unit:
  description: Its unit.
  returned: always
  type: str
slot:
  description: The slot.
  returned: always
  type: str
job:
  description: The job's name; its journal and plan are on the host.
  returned: not in check mode
  type: str
outcome:
  description: How it ended.
  returned: not in check mode
  type: str
  choices: [swapped, noop, rolled_back, rollback_failed, refused, interrupted]
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
events:
  description: The job's journal. In failures only with C(-v), as it was printed already.
  returned: not in check mode
  type: list
  elements: dict
plan:
  description: What the swap would change, stop and cost.
  returned: in check mode, on a host that site.yml has provisioned
  type: dict
"""
