"""Documentation of the action plugin inventory_check."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: inventory_check
short_description: Resolve the inventory on the controller and refuse what cannot work
version_added: 0.1.0
author: The specswap maintainers
description:
  - Resolves slots, environments, models and variants without connecting to any host.
  - Fails with every problem found, each with its key path and the names that are known.
options:
  slot:
    description: Slot that must exist. May be left out when the host has only one.
    type: str
  variant:
    description: Variant that the slot must know.
    type: str
  arms:
    description: Two different variants that the slot must know, as a list or as text separated by a comma.
    type: raw
  suite:
    description: Prompt suite that must be readable on the controller.
    type: str
  pairs:
    description: Number of pairs that a comparison must be able to have.
    type: raw
  results_dir:
    description: Folder on the controller that must take results. Empty means the default; left out, none is needed.
    type: str
  require:
    description: Fail when this is not given.
    type: str
    choices: [slot, variant, arms]
extends_documentation_fragment:
  - specswap.core.attributes.read_only
  - specswap.core.attributes.inventory
"""

EXAMPLES = r"""
- name: Refuse unknown variants before any connection is made
  specswap.core.inventory_check:
    inventory: "{{ specswap_inventory }}"
    variant: ngram
"""

RETURN = r"""
slot:
  description: The slot meant, or null when nothing was asked of one.
  returned: success
  type: str
arms:
  description: The two arms, or an empty list.
  returned: success
  type: list
  elements: str
wanted:
  description: The variant that the inventory declares, by slot.
  returned: success
  type: dict
units:
  description: Every unit that the inventory describes.
  returned: success
  type: list
  elements: str
"""
