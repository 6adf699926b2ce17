"""Shares of a network interface for groups of flows, kept by the kernel: for operators, and never needed by a run.

`groups` says which groups there are, what share is theirs and which traffic classes follow; `commands` writes these as
`tc` commands, both without looking at any interface; `interface` finds this machine in a cluster, reads what an
interface has and changes it.

Packets are told apart by their DSCP mark, which both ends of the wire set (`wire.dscp` of a cluster file, or
`wire.dscp_classes` by urgency, which are then served in strict order). Ports would not do: the system chooses them at
every start. What torch's process groups send has no mark, and is known by going to another machine of the cluster.
"""

from penstock.cluster.shaping.commands import clear_commands, set_commands
from penstock.cluster.shaping.groups import (
    Classes,
    FlowGroup,
    FlowGroups,
    TrafficClass,
    classes_of,
    default_groups,
    read_groups,
)
from penstock.cluster.shaping.interface import (
    InterfaceQueue,
    carry_out,
    look,
    machine_of,
    own_address,
    peers_of,
    refuse_foreign,
)

__all__ = [
    "Classes",
    "FlowGroup",
    "FlowGroups",
    "InterfaceQueue",
    "TrafficClass",
    "carry_out",
    "classes_of",
    "clear_commands",
    "default_groups",
    "look",
    "machine_of",
    "own_address",
    "peers_of",
    "read_groups",
    "refuse_foreign",
    "set_commands",
]
