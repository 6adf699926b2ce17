"""Drawing a batch from neighbour lists, by one thread of the host or by a GPU."""

import numpy as np
import torch

from penstock.cost.operators.entry import Operator, Run, Rung
from penstock.nn.operator_costs import Amounts, Processor, Sizes
from penstock.sampling import BatchKey, NeighbourSampler
from penstock.sampling.neighbours import ALL


def _sizes(rung: Rung) -> dict[str, float]:
    blocks, whole = rung.batch.blocks, _whole(rung)
    pairs = list(zip(blocks, rung.fanouts[::-1], strict=True))
    return {
        "hops": len(blocks),
        "rows": sum(block.num_dst for block, fanout in pairs if fanout != ALL),
        "rows_in_order": sum(block.num_dst for block, fanout in pairs if fanout == ALL),
        "drawn": sum(block.num_edges for block in blocks) - whole,
        "whole": whole,
        "vertices": blocks[0].num_src,
        "graph_nodes": rung.graph.num_nodes,
        "graph_edges": rung.graph.num_edges,
    }


def _whole(rung: Rung) -> int:
    """Edges of lists no longer than the fan-out: they are copied, not drawn."""
    (edges,) = rung.graph.edges.values()
    vertices = rung.batch.vertices[rung.batch.node_type]
    found = 0
    for block in rung.batch.blocks:
        taken, lists = np.diff(block.indptr), vertices[: block.num_dst]
        found += int(taken[taken == edges.indptr[lists + 1] - edges.indptr[lists]].sum())
    return found


def _draw(rung: Rung, device: torch.device) -> Run:
    if device.type == "cuda":
        return _draw_on_device(rung, device)
    sampler = NeighbourSampler(rung.graph, list(rung.fanouts))
    return lambda: sampler.sample(rung.seeds, BatchKey(0, 0, 0))


def _draw_on_device(rung: Rung, device: torch.device) -> Run:
    # Triton is imported where there is a device for it.
    from penstock.sampling.device.hops import Topology
    from penstock.sampling.device.program import DeviceProgram, neighbour_rules
    from penstock.sampling.device.sampler import DeviceSampler

    (edges,) = rung.graph.edges.values()
    indptr, indices = (
        torch.from_numpy(np.ascontiguousarray(each)).to(device) for each in (edges.indptr, edges.indices)
    )
    lists = Topology(indptr, indices)
    sampler = DeviceSampler(lists, DeviceProgram(neighbour_rules(rung.fanouts)), device)
    return lambda: sampler.sample(rung.seeds, BatchKey(0, 0, 0))


def _measured_on(rung: Rung, device: str) -> bool:
    """Whether it is measured here: a GPU does not copy whole lists of any length."""
    return device == "cpu" or ALL not in rung.fanouts


def sample_work(sizes: Sizes, processor: Processor) -> Amounts:
    """Lists are looked up by row, neighbours by edge, and each vertex's row by its number: all randomly."""

    def missed(table_bytes: float) -> float:
        return max(0.0, 1 - processor.own_cache / max(table_bytes, 1.0))

    lists, table = 4 * sizes["graph_edges"] + 8 * sizes["graph_nodes"], 4 * sizes["graph_nodes"]
    edges = sizes["drawn"] + sizes["whole"]
    return {
        "hops": sizes["hops"],
        "rows": sizes["rows"],
        "rows_in_order": sizes["rows_in_order"],
        "drawn": sizes["drawn"],
        "whole": sizes["whole"],
        "rows_missed": sizes["rows"] * missed(lists),
        "edges_missed": edges * missed(table),
    }


SAMPLE = Operator("sample", _sizes, sample_work, _draw, measured_on=_measured_on, cores=1.0)
