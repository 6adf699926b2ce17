"""Every way to draw estimates the whole neighbourhood without bias, and is the same on any thread."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from neighbourhoods import assert_edges_are_in_the_lists, assert_unbiased, estimates, same_batch, stars
from penstock.sampling import ALL, BatchKey, NeighbourSampler

COPIES = 6000
CONDITIONS = ["none", "exclude", "edge time", "node time", "node time and exclude"]


def case(condition, replace, weight, fanouts):
    """A sampler on stars, what `sample` needs besides, and which leaves are admissible."""
    graph, centres, leaves = stars(COPIES)
    admissible = np.ones(len(leaves), bool)
    more, time = {}, None
    if "exclude" in condition:
        gone = leaves[5:15]
        admissible[5:15] = False
        more["exclude"] = np.stack([np.tile(gone, COPIES), np.repeat(centres, 10)])
    if "time" in condition:
        time = "t" if condition.startswith("edge") else "node:t"
        more["times"] = np.full(COPIES, 70)
        admissible &= graph.nodes["node"].fields["t"][leaves] <= 70
    sampler = NeighbourSampler(graph, fanouts, replace, weight, totals=True, edges=True, time=time)
    return graph, sampler, centres, leaves, admissible, more


@pytest.mark.covering(1)
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("replace", [False, True])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_sums_and_means_are_unbiased(condition, replace, weight):
    for fanout in (1, 4, 33, ALL):
        graph, sampler, centres, leaves, admissible, more = case(condition, replace, weight, [fanout])
        batch = sampler.sample(centres, BatchKey(5, 0, fanout), **more)
        edges = graph.edges["node", "to", "node"]
        shares = edges.fields["w"][: len(leaves)].astype(float) if weight else np.ones(len(leaves))
        shares = shares * admissible
        values = graph.nodes["node"].fields["h"]
        total, mean = estimates(batch, values)
        assert_unbiased(total, shares @ values[leaves])
        assert_unbiased(mean, shares @ values[leaves] / shares.sum())
        block = batch.blocks[0]
        np.testing.assert_allclose(block.totals[:COPIES], shares.sum(), rtol=1e-5)
        assert (block.weights is None) == (weight is None or (replace and fanout != ALL))
        assert np.isin(batch.vertices["node"][block.indices], leaves[admissible]).all()
        assert_edges_are_in_the_lists(block, edges, batch.vertices["node"], batch.vertices["node"])
        expected = min(fanout, admissible.sum()) if fanout != ALL and not replace else fanout
        assert (np.diff(block.indptr) == (admissible.sum() if fanout == ALL else expected)).all()


@pytest.mark.covering(1)
@pytest.mark.parametrize("condition", CONDITIONS)
@pytest.mark.parametrize("fanout", [3, 40])
def test_every_admissible_neighbour_is_equally_likely(condition, fanout):
    *_, sampler, centres, leaves, admissible, more = case(condition, False, None, [fanout])
    batch = sampler.sample(centres, BatchKey(6, 0, 0), **more)
    drawn = batch.vertices["node"][batch.blocks[0].indices]
    counts = np.array([(drawn == leaf).sum() for leaf in leaves[admissible]])
    chance = min(1, fanout / admissible.sum())
    assert abs(counts - COPIES * chance).max() <= 5 * np.sqrt(COPIES * chance * (1 - chance))


@pytest.mark.covering(1)
@pytest.mark.parametrize("weight", [None, "w"])
@pytest.mark.parametrize("condition", CONDITIONS)
def test_the_same_on_any_number_of_threads(condition, weight):
    *_, sampler, centres, _, _, more = case(condition, False, weight, [4, 3])
    pieces = [centres[i * 50 : (i + 1) * 50] for i in range(12)]

    def sample(index):
        these = {**more, "times": more["times"][:50]} if "times" in more else more
        return sampler.sample(pieces[index], BatchKey(7, 0, index), **these)

    alone = [sample(index) for index in range(12)]
    for threads in (2, 4):
        with ThreadPoolExecutor(threads) as pool:
            for a, b in zip(alone, pool.map(sample, range(12)), strict=True):
                same_batch(a, b)
