"""Documentation of the action plugin bench_block."""

# This is a virtual module that is entirely implemented as an action plugin and runs on the controller.

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_block
short_description: Measure the active variant of a slot once
version_added: 0.1.0
author: The specswap maintainers
description:
  - Runs one block, warm-up and measured prompts, against the active variant of a slot. Nothing is swapped.
  - One block says how fast a variant is now; to say which of two is faster, use M(specswap.core.comparison).
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them.
    type: list
    elements: dict
    required: true
  slot:
    description: The slot. May be left out when the host has only one.
    type: str
  suite:
    description: Prompt suite.
    type: str
    default: story
  max_tokens:
    description: Upper limit of a reply in tokens.
    type: int
    default: 256
  release_path:
    description: The release of C(venv_bench) on the host.
    type: str
    required: true
  results_dir:
    description: The block is kept in C(blocks) below this folder on the controller. Empty means the C(results) folder.
    type: str
    default: ""
extends_documentation_fragment:
  - specswap.core.attributes.read_only
"""

EXAMPLES = r"""
- name: How fast is it now
  specswap.core.bench_block:
    services: "{{ specswap_inventory | specswap.core.services }}"
    release_path: "{{ (specswap_inventory | specswap.core.releases('venv_bench') | first).path }}"
"""

RETURN = r"""
slot:
  description: The slot.
  returned: not in check mode
  type: str
variant:
  description: The variant that was measured.
  returned: not in check mode
  type: str
plan_hash:
  description: Its plan.
  returned: not in check mode
  type: str
results:
  description: The file on the controller.
  returned: not in check mode
  type: str
block:
  description: The block with every request, failed ones too.
  returned: not in check mode
  type: dict
"""
