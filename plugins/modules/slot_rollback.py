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
outcome:
  description: How it ended, as in M(specswap.core.slot_swap).
  returned: not in check mode
  type: str
seconds:
  description: Seconds from accepting the job to its end.
  returned: not in check mode
  type: float
downtime_s:
  description: Seconds without service.
  returned: when something was stopped
  type: float
events:
  description: The job's journal.
  returned: not in check mode
  type: list
  elements: dict
"""
