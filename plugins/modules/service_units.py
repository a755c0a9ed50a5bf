"""Write a host's units and registry."""

from __future__ import annotations

DOCUMENTATION = r"""
module: service_units
short_description: Write the units and the registry of a host's slots
version_added: 0.1.0
author: The specswap maintainers
description:
  - Writes one unit per service and one registry file per slot, removes units of ours that are no longer wanted, and
    reloads systemd once if anything changed.
  - Never rewrites or stops the unit that serves. A slot whose active unit is not what the inventory describes is
    returned in RV(needs_swap); M(specswap.core.slot_swap) brings it there through the gate.
  - The unit texts are rendered on the controller from C(templates/service.j2).
options:
  services:
    description: The host's services, as the filter P(specswap.core.services#filter) makes them.
    type: list
    elements: dict
    required: true
  wanted:
    description: The variant that the inventory declares, by slot.
    type: dict
    required: true
  purge:
    description: Remove units of ours that the inventory no longer describes and that do not serve.
    type: bool
    default: true
extends_documentation_fragment:
  - specswap.core.attributes
"""

EXAMPLES = r"""
- name: Write the units of every variant
  specswap.core.service_units:
    services: "{{ specswap_inventory | specswap.core.services }}"
    wanted: "{{ specswap_inventory | specswap.core.wanted }}"
  notify: specswap active variant changed
"""

RETURN = r"""
slots:
  description: By slot, the active and the wanted variant, whether a swap is needed, and why.
  returned: success
  type: dict
needs_swap:
  description: Names of the slots that need a swap.
  returned: success
  type: list
  elements: str
"""

import json
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import units

ARGUMENTS = {
    "services": {"type": "list", "elements": "dict", "required": True},
    "wanted": {"type": "dict", "required": True},
    "purge": {"type": "bool", "default": True},
}


def shown(entry: dict[str, Any]) -> dict[str, str]:
    """A difference for people: units as they are, registry files by the plan of each variant only."""
    brief = plans if entry["path"].endswith(".json") else str
    return {
        "before": brief(entry["before"] or ""),
        "after": brief(entry["after"] or ""),
        "before_header": entry["path"],
        "after_header": entry["path"],
    }


def plans(registry: str) -> str:
    """One line per variant: all else is in the units."""
    try:
        data = json.loads(registry)
        lines = [f"{name}: plan {service['plan_hash']}" for name, service in sorted(data["services"].items())]
        return "\n".join([f"wanted: {data['wanted']}", *lines, ""])
    except (ValueError, KeyError, TypeError, AttributeError):
        return registry


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    spec = {
        **module.params,
        "slots_dir": "/etc/specswap/slots",
        "units_dir": "/etc/systemd/system",
        "state_dir": "/var/lib/specswap",
    }
    try:
        result = units.apply_services(spec, module.check_mode)
    except (OSError, RuntimeError, ValueError) as error:
        module.fail_json(msg=str(error))
    slots = result["slots"]
    needs_swap = sorted(name for name, slot in slots.items() if slot["needs_swap"])
    for name, slot in sorted(slots.items()):
        if slot["wanted"] is None and slot["active"] is not None:
            folder = f"{spec['state_dir']}/{name}"
            module.warn(f"Slot {name}: {slot['reason']}, and move {folder} away, so that the host forgets the slot.")
    diff = [shown(entry) for entry in result["diff"]]
    # A slot that needs a swap is a difference between host and inventory: it must reach the handler.
    module.exit_json(changed=bool(result["changed"] or needs_swap), diff=diff, slots=slots, needs_swap=needs_swap)


if __name__ == "__main__":
    main()
