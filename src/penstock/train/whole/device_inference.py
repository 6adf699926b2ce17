"""Exact inference of a run on the whole graph, on a GPU that has room for the graph and every vertex's outputs."""

from collections.abc import Callable

import torch

from penstock.sampling.device.hops import Topology
from penstock.store.device.copies import to_device
from penstock.store.device.tables import ResidentTable
from penstock.train.device.whole import DeviceWholeGraph
from penstock.train.device_memory import device_memory_of
from penstock.train.layerwise.host import HostPlan
from penstock.train.layerwise.plan import LayerPlan
from penstock.train.session import Session

_ARRAYS = 6
"""Arrays as large as every vertex's rows that a layer holds at once."""


def whole_on_device(session: Session) -> Callable[[HostPlan], LayerPlan | None]:
    """Makes the plan of an inference; it gives None where the graph is to be read from the host."""
    device, job, graph = session.inputs.device, session.job, session.graph
    carried = session.list_weight is not None or bool(session.inputs.exact_edges)
    if not graph.is_homogeneous or session.inputs.tables or carried or graph.num_edges >= 1 << 31:
        return lambda host: None
    ((name, nodes),), (edges,) = graph.nodes.items(), graph.edges.values()
    features = nodes.fields[session.inputs.fields[name]]
    free, _ = device_memory_of(device)
    width = max(job.hidden, features.shape[1])
    if 4 * (_ARRAYS * width * nodes.count + graph.num_edges) > free // 2:
        return lambda host: None
    topology = Topology(to_device(edges.indptr, device), to_device(edges.indices, device).to(torch.int32))
    table = ResidentTable(to_device(features, device, torch.float32))
    return lambda host: DeviceWholeGraph(host, name, topology, table, False, session.inputs.scale)
