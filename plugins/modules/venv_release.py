"""Build a release of an environment."""

from __future__ import annotations

DOCUMENTATION = r"""
module: venv_release
short_description: Build a release of an environment from its lock
version_added: 0.1.0
author: The specswap maintainers
description:
  - Builds the release beside the older ones from wheels that the lock pins by hash, checks that its packages import,
    stamps it, makes it read-only, and renames it into place. A release is never changed once it is stamped.
  - Wheels that the host lacks are sent from the controller's wheelhouse, and only those. The host needs no network.
  - A torn build is removed and built anew. A stamped release whose files were edited is refused by name.
options:
  release:
    description: The release, as the filter P(specswap.core.releases#filter) makes it.
    type: dict
    required: true
  keep:
    description: Releases kept per environment, besides those that a unit, a slot's state or a process refers to.
    type: int
    default: 3
  wheelhouse:
    description: Where the controller keeps wheels. Empty means C(.specswap/wheelhouse) of the clone.
    type: str
    default: ""
  lock_text:
    description: Added on the controller.
    type: str
  wheels:
    description: Added on the controller.
    type: dict
  incoming:
    description: Added on the controller.
    type: path
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Build the releases
  specswap.core.venv_release:
    release: "{{ item }}"
  loop: "{{ specswap_inventory | specswap.core.releases }}"
"""

RETURN = r"""
path:
  description: Where the release is.
  returned: success
  type: str
seconds:
  description: Seconds that it took.
  returned: success
  type: float
removed:
  description: Older releases that were removed.
  returned: success
  type: list
  elements: str
missing:
  description: Files that the host lacked and got.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import release as releases

PLACES = {"wheelhouse": "/opt/specswap/wheelhouse", "envs": "/opt/specswap/envs", "uv": "/opt/specswap/bin/uv"}
ARGUMENTS = {
    "release": {"type": "dict", "required": True},
    "keep": {"type": "int", "default": 3},
    "lock_text": {"type": "str", "required": True},
    "wheels": {"type": "dict"},
    "incoming": {"type": "path"},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    params = module.params
    spec = {
        **{key: params["release"][key] for key in ("release", "environment", "flavour", "python")},
        **{key: params[key] for key in ("lock_text", "wheels", "keep", "incoming")},
        **PLACES,
    }
    # Without a list of wheels the controller has none to give: then only a release that is there already will do.
    try:
        result = releases.ensure_release(spec, module.check_mode or params["wheels"] is None)
    except (OSError, RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
