"""What a process sends, and in which order.

`policies` say which flow is next, from what can be seen of the queues; `flow` is a flow's queue and its counters;
`queues` holds all flows of a process and lets only so many bytes be on a connection at a time, since what is there can
be neither reordered nor withdrawn.
"""

from penstock.wire.egress.flow import Flow, FlowCount, Outgoing, Route
from penstock.wire.egress.policies import POLICIES, Head, Policy
from penstock.wire.egress.queues import Egress

__all__ = ["POLICIES", "Egress", "Flow", "FlowCount", "Head", "Outgoing", "Policy", "Route"]
