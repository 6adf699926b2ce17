"""Decisions before anything starts: from sizes, costs and machines to a plan.

`residence` decides what lives on the device, in pinned memory and on the host. For a run on several machines,
`workloads/` turns it into tasks and flows and their memory over time, `placement/` decides where tasks go, `comparison`
compares placements and flow policies, `bound` is a lower bound on all of them, and `changes` says what limits and
what would help. `planner` joins these and can simulate a plan again, `document` is the plan. Nothing here
allocates or measures.
"""

from penstock.plan.residence import NoRoomError, Residence, Sizes, Wanted, decide_residence

__all__ = ["NoRoomError", "Residence", "Sizes", "Wanted", "decide_residence"]
