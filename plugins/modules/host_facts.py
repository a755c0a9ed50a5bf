"""Collect and judge a host's facts."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Collect a host's facts in one call and judge them
version_added: 0.1.0
author: The specswap maintainers
description:
  - Reads Python, systemd, C library, memory, disk space, system libraries and the owners of the slots' ports in one
    call.
  - Fails with every finding of severity V(error) at once, each with what to do, unless O(fail=false).
options:
  slots:
    description: The slots that the host shall have.
    type: list
    elements: dict
    default: []
  python:
    description: Oldest Python that will do.
    type: str
    default: "3.9"
  glibc:
    description: Oldest C library that will do.
    type: str
    default: "2.28"
  disk_mib:
    description: Free space in MiB that C(/opt) and C(/var) must have.
    type: int
    default: 2048
  libraries:
    description: Libraries that the engines need from the system, by file name, with the Debian package of each.
    type: dict
    default: {}
  fail:
    description: Whether a finding of severity V(error) fails the task.
    type: bool
    default: true
extends_documentation_fragment:
  - specswap.core.attributes.read_only
"""

EXAMPLES = r"""
- name: Judge the host
  specswap.core.host_facts:
    slots: "{{ specswap_inventory | specswap.core.slots }}"
  register: judged
"""

RETURN = r"""
facts:
  description: What was read.
  returned: always
  type: dict
findings:
  description: What keeps the host from serving or may do so.
  returned: always
  type: list
  elements: dict
  contains:
    id: {description: Short name of the finding., type: str}
    severity: {description: V(error) or V(warning)., type: str}
    message: {description: What is wrong., type: str}
    fix: {description: What to do., type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.specswap.core.plugins.module_utils.specswap_host import facts

ARGUMENTS = {
    "slots": {"type": "list", "elements": "dict", "default": []},
    "python": {"type": "str", "default": "3.9"},
    "glibc": {"type": "str", "default": "2.28"},
    "disk_mib": {"type": "int", "default": 2048},
    "libraries": {"type": "dict", "default": {}},
    "fail": {"type": "bool", "default": True},
}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    wants = {key: module.params[key] for key in ("slots", "python", "glibc", "disk_mib", "libraries")}
    collected = facts.collect(module.params["slots"], module.params["libraries"])
    findings = facts.judge(collected, wants)
    errors = [finding for finding in findings if finding["severity"] == "error"]
    for finding in findings:
        if finding["severity"] != "error":
            module.warn(f"{finding['message']} {finding['fix']}")
    if errors and module.params["fail"]:
        lines = [f"- {finding['id']}: {finding['message']} What to do: {finding['fix']}" for finding in errors]
        module.fail_json(msg="This host cannot serve yet:\n" + "\n".join(lines), facts=collected, findings=findings)
    module.exit_json(changed=False, facts=collected, findings=findings)


if __name__ == "__main__":
    main()
