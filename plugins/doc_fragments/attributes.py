"""Documentation that the modules of this collection share."""

from __future__ import annotations


class ModuleDocFragment:
    """How the modules behave under check mode, diff mode and as root."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and says what would change, without changing anything.
    support: full
  diff_mode:
    description: Returns what changed, or would change in C(check_mode), with C(--diff).
    support: full
  platform:
    description: Target systems.
    platforms: linux with systemd 247 or newer
    support: full
notes:
  - Needs root on the host; use C(become=true).
"""

    READ_ONLY = r"""
options: {}
attributes:
  check_mode:
    description: Reads only, so C(check_mode) makes no difference.
    support: full
  diff_mode:
    description: Changes nothing, so there is no difference to show.
    support: N/A
  platform:
    description: Target systems.
    platforms: linux with systemd 247 or newer
    support: full
"""

    JOB = r"""
options:
  reconnect_s:
    description:
      - Seconds for which a lost connection is tried again. The job goes on meanwhile, since it runs on the host.
    type: float
    default: 180
"""

    INVENTORY = r"""
options:
  inventory:
    description:
      - The inventory data of this host, with the keys V(slots), V(environments), V(models), V(variants),
        V(budgets), V(gate), V(allow_remote_bind) and V(serial).
    type: dict
    required: true
"""
