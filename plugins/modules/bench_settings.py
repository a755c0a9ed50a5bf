"""Register how comparisons of a slot are run."""

from __future__ import annotations

DOCUMENTATION = r"""
module: bench_settings
short_description: Register how comparisons of a slot are run on the host
version_added: 0.1.0
author: The specswap maintainers
description:
  - Keeps suite, request and runner in the slot's registry file, so that an operator who is logged in on the host can
    run C(specswap-host compare) as M(specswap.core.comparison) would.
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them; names the slots.
    type: list
    elements: dict
    required: true
  slot:
    description: The slot. May be left out when the host has only one.
    type: str
  pairs:
    description: Pairs of blocks when the command names none.
    type: int
    default: 6
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
  settings:
    description: Added on the controller.
    type: dict
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Register the benchmark settings
  specswap.core.bench_settings:
    services: "{{ specswap_inventory | specswap.core.services }}"
    release_path: "{{ (specswap_inventory | specswap.core.releases('venv_bench') | first).path }}"
"""

RETURN = r"""
path:
  description: The registry file.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.atomic import json_text
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.context import Paths
from ansible_collections.specswap.core.plugins.module_utils.specswap_host.registry import RegistryError, set_benchmark

ARGUMENTS = {"slot": {"type": "str", "required": True}, "settings": {"type": "dict", "required": True}}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    paths, slot, after = Paths(), module.params["slot"], module.params["settings"]
    path = paths.registry(slot)
    try:
        before = set_benchmark(paths, slot, after, module.check_mode)
    except (OSError, RegistryError) as error:
        module.fail_json(msg=str(error))
    diff = {
        "before": "" if before is None else json_text(before),
        "after": json_text(after),
        "before_header": f"{path} benchmark",
        "after_header": f"{path} benchmark",
    }
    module.exit_json(changed=before != after, path=str(path), diff=diff)


if __name__ == "__main__":
    main()
