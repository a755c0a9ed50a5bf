"""Install the toolkit."""

from __future__ import annotations

DOCUMENTATION = r"""
module: toolkit
short_description: Install specswap-host, the benchmark client and the launchers
version_added: 0.1.0
author: The specswap maintainers
description:
  - Packs C(host/), C(bench/) and C(engines/) of this collection on the controller and unpacks them below
    C(/opt/specswap) in folders named after their content, so that a change of one restarts nothing else.
  - Switches C(/opt/specswap/lib/current) by rename. Older trees stay for a while.
  - Takes no options; the payload is added on the controller.
options:
  payload_b64:
    description: Added on the controller.
    type: str
  trees:
    description: Added on the controller.
    type: dict
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Install the toolkit
  specswap.core.toolkit:
"""

RETURN = r"""
path:
  description: The tree that is current now.
  returned: success
  type: str
removed:
  description: Older trees that were removed.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import toolkit

ARGUMENTS = {"payload_b64": {"type": "str"}, "trees": {"type": "dict"}}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    try:
        result = toolkit.install_trees(module.params, module.check_mode)
    except (OSError, RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
