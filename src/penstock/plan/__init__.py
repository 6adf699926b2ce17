"""Decisions before anything starts: from sizes, costs and machines to a plan.

`residence` says what lives on the device, in pinned memory and on the host. For a run on several machines,
`workloads/` turns it into tasks and flows and says what machines hold over time, `placement/` decides where tasks go,
`comparison` looks at placements and flow policies side by side, `bound` says what none of them beats, `bottleneck`
what limits, and `changes` what would help. `planner` joins these and simulates a plan again, `document` is the plan.
Nothing here allocates or measures.
"""

from penstock.plan.residence import NoRoomError, Residence, Sizes, Wanted, decide_residence

__all__ = ["NoRoomError", "Residence", "Sizes", "Wanted", "decide_residence"]
