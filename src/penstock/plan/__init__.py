"""Decisions before anything starts: from sizes, costs and machines to a plan.

`residence` says what lives on the device, in pinned memory and on the host. A run on several machines: `training` is
the run as a workload, `machines` what it may use, `placement/` who decides where tasks go, `comparing` looks at
placements and flow policies side by side, `bottleneck` and `buying` say what limits and what would help, `document` is
the plan. Nothing here allocates or measures.
"""

from penstock.plan.residence import NoRoomError, Residence, Sizes, Wanted, decide_residence

__all__ = ["NoRoomError", "Residence", "Sizes", "Wanted", "decide_residence"]
