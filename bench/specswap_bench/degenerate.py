"""The detector of degenerate output, as the host's gate uses it: a looping arm must not win on speed."""

from __future__ import annotations

from specswap_host.degenerate import Degeneracy, assess, repeated_tail

__all__ = ["Degeneracy", "assess", "repeated_tail"]
