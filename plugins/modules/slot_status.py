"""Documentation of the action plugin slot_status."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: slot_status
short_description: What a host's slots serve, since when, by which proof
version_added: 0.1.0
author: The specswap maintainers
description:
  - Runs C(specswap-host status --json) on the host. It compares what was committed with what is true now.
options:
  slot:
    description: Only this slot.
    type: str
  must_agree:
    description: Fail when what was committed is not what is true now.
    type: bool
    default: false
  declared:
    description:
      - Slots that O(must_agree) is about. Left out, it is about all, also about those that were stopped after the
        inventory had dropped them.
    type: list
    elements: str
  require:
    description:
      - Print nothing, and fail unless the slot is registered on the host (V(registered)) or has a committed variant
        (V(active)); in check mode, too. For plays that would else do work that nothing comes of.
    type: str
    choices: [registered, active]
extends_documentation_fragment:
  - specswap.core.attributes.read_only
"""

EXAMPLES = r"""
- name: Ask the host what it serves
  specswap.core.slot_status:
  register: served
"""

RETURN = r"""
status:
  description: The host's answer; null in check mode on a host without the toolkit.
  returned: success
  type: dict
"""
