"""Decisions before anything starts: from sizes to a plan, in plain arithmetic.

`residence` says what lives on the device, in pinned memory and on the host. Nothing here allocates or measures.
"""

from penstock.plan.residence import NoRoomError, Residence, Sizes, Wanted, decide_residence

__all__ = ["NoRoomError", "Residence", "Sizes", "Wanted", "decide_residence"]
