"""A small trace as a workload of the general engine, to compare the two and to use its policies and timelines."""

import numpy as np

from penstock.graph.arrays import Array
from penstock.hardware.machines import Network, star
from penstock.simulate.traces.coflows import PortRates, TraceCoflows, rates_of
from penstock.simulate.traces.trace import CoflowTrace
from penstock.simulate.workload import Workload, WorkloadBuilder


def workload_of(trace: CoflowTrace | TraceCoflows, rate_bytes_s: float | PortRates) -> tuple[Workload, Network, Array]:
    """One iteration that is the trace: the workload, a star of ports, and the placement.

    The two sides of a port are two machines, so that a flow that leaves where it entered is no free one. An arrival is
    a task of that many seconds, and a coflow's flows wait for it. Flows are in the order of `TraceCoflows`.
    """
    coflows = trace.coflows if isinstance(trace, CoflowTrace) else trace
    rates = rates_of(rate_bytes_s, coflows.ports)
    building = WorkloadBuilder("trace")
    sides = [f"{kind} {port}" for kind in ("ingress", "egress") for port in range(coflows.ports)]
    ports = [building.task(name, name.split()[0], 0.0) for name in sides]
    for coflow in range(coflows.count):
        name = f"coflow {coflows.names[coflow]}"
        arrival = building.task(f"{name} arrives", "arrival", float(coflows.arrivals[coflow]))
        for flow in range(coflows.first[coflow], coflows.first[coflow + 1]):
            source, target = int(coflows.sources[flow]), int(coflows.targets[flow])
            item = building.flow(
                ports[source],
                ports[coflows.ports + target],
                float(coflows.sizes[flow]),
                "shuffle",
                name=f"{name}: {source}->{target}",
                coflow=name,
                follows_itself=False,
                waits_for_source=False,
                awaited_by_target=False,
            )
            building.wait(arrival, item)
    load = building.build()
    placement = np.zeros(load.tasks, np.int32)
    placement[: len(sides)] = np.arange(len(sides))
    return load, star(rates, rates, sides), placement
