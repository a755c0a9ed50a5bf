"""Documentation of the action plugin slot_rollback."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: slot_rollback
short_description: Give a slot back to the variant that was committed before
version_added: 0.1.0
author: The specswap maintainers
description:
  - Swaps towards the variant that was committed before the active one, with the unit that it had then, through the
    same gate as any swap.
  - Fails on every outcome but V(swapped) and V(noop).
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them; names the slots.
    type: list
    elements: dict
    required: true
  slot:
    description: The slot. May be left out when the host has only one.
    type: str
extends_documentation_fragment:
  - specswap.core.attributes
  - specswap.core.attributes.job
"""

EXAMPLES = r"""
- name: Back to the variant before
  specswap.core.slot_rollback:
    services: "{{ specswap_inventory | specswap.core.services }}"
"""

RETURN = r"""
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
