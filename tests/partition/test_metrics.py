"""Metrics against a literal count."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.partition import measure
from penstock.partition.problem import constraints_of, default_names, whole_of
from random_graphs import graphs


@given(graphs(), st.integers(1, 70), st.integers(0, 9))
def test_metrics_count_what_they_say(graph, parts, seed):
    whole = whole_of(graph)
    part = np.random.default_rng(seed).integers(0, parts, whole.count).astype(np.int32)
    found = measure(whole, part, parts, constraints_of(whole, default_names(whole)))
    cut, reads = 0, set()
    for (source, _, target), edges in graph.edges.items():
        src = edges.indices + whole.offsets[source]
        dst = edges.destinations() + whole.offsets[target]
        cut += int((part[src] != part[dst]).sum())
        reads |= {(int(u), int(part[v])) for u, v in zip(src, dst, strict=True) if part[u] != part[v]}
    assert found.edge_cut == cut
    assert found.comm_volume == len(reads)
    assert found.recv == [sum(p == q for _, q in reads) for p in range(parts)]
    assert found.send == [sum(part[u] == p for u, _ in reads) for p in range(parts)]
    assert found.replication == 1 + len(reads) / whole.count
    largest = np.bincount(part, minlength=parts).max()
    assert found.balance["vertices"] == largest / (whole.count / parts)
