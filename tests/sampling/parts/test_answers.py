"""Rows go to their owners and come back in order."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from penstock.sampling.parts.remote import PartAnswer, group_by_owner, stitch_draws, stitch_rows


@st.composite
def splits(draw):
    """Bounds of parts, some of them empty, and vertices in any order, some of them twice."""
    sizes = draw(st.lists(st.integers(0, 9), min_size=1, max_size=6).filter(any))
    bounds = np.cumsum([0, *sizes])
    vertices = draw(st.lists(st.integers(0, int(bounds[-1]) - 1), max_size=60))
    return bounds, np.array(vertices, np.int32)


@given(splits())
def test_every_row_goes_to_its_owner_once(split):
    bounds, vertices = split
    groups = group_by_owner(vertices, bounds)
    for part, (rows, theirs) in groups.items():
        assert len(rows) > 0
        assert (np.diff(rows) > 0).all()
        np.testing.assert_array_equal(vertices[rows], theirs)
        assert (bounds[part] <= theirs).all() and (theirs < bounds[part + 1]).all()
    everything = np.concatenate([rows for rows, _ in groups.values()]) if groups else np.empty(0)
    np.testing.assert_array_equal(np.sort(everything), np.arange(len(vertices)))


@given(splits(), st.booleans(), st.sampled_from([np.int32, np.int64]))
def test_lists_come_back_in_the_order_of_rows(split, weighted, dtype):
    bounds, vertices = split
    lists = [[int(vertex) * 10 + k for k in range(vertex % 4)] for vertex in vertices]
    groups, pieces = group_by_owner(vertices, bounds), {}
    for part, (rows, _) in groups.items():
        sources = np.array([source for row in rows for source in lists[row]], dtype)
        counts = np.array([len(lists[row]) for row in rows])
        pieces[part] = PartAnswer(counts, sources, (sources / 2).astype(np.float32) if weighted else None)
    drawn = stitch_draws(groups, pieces, len(vertices), np.dtype(dtype), weighted)
    assert drawn.sources.dtype == dtype
    assert [drawn.sources[a:b].tolist() for a, b in zip(drawn.indptr, drawn.indptr[1:], strict=False)] == lists
    assert (drawn.weights is not None) == weighted
    if weighted:
        np.testing.assert_array_equal(drawn.weights, (drawn.sources / 2).astype(np.float32))


@given(splits())
def test_numbers_come_back_in_the_order_of_rows(split):
    bounds, vertices = split
    groups = group_by_owner(vertices, bounds)
    pieces = {part: (theirs * 3).astype(np.float32) for part, (_, theirs) in groups.items()}
    np.testing.assert_array_equal(stitch_rows(groups, pieces, len(vertices)), (vertices * 3).astype(np.float32))
