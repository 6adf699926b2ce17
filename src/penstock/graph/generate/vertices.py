"""Synthetic vertices: their positions in communities, their features, labels and splits."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.generate.recipe import GraphRecipe
from penstock.graph.hashing import below, document_key, draw, mix, unit, unit_draws
from penstock.kernels import njit

# Positions of vertices: communities are consecutive positions, scrambled into vertex numbers by a bijection. Choosing a
# neighbour in a community is then arithmetic on positions; no member lists are kept, and vertex numbers reveal nothing
# about communities, as in real data.

_ROUNDS = 2
_STEP = np.uint64(0x9E3779B97F4A7C15)
_HIGH_HALF = np.uint64(32)


class Numbering(NamedTuple):
    """The bijection between positions and vertex numbers, as kernels see it."""

    key: np.uint64
    rows: int
    columns: int
    """rows * columns >= size: the bijection's two halves."""
    size: int


class VertexLayout(NamedTuple):
    """The vertices of one type."""

    numbering: Numbering
    starts: Array
    """First position of each community, and the count."""
    classes: Array
    """Class of each community."""
    rank: Array
    """Position of each community among those of its class."""
    class_ptr: Array
    class_communities: Array
    """Communities grouped by class."""
    class_ends: Array
    """Running number of vertices inside a class, community by community."""

    @property
    def size(self) -> int:
        """How many vertices there are."""
        return self.numbering.size


def lay_out(recipe: GraphRecipe, node_type: str, seed: int) -> VertexLayout:
    """Communities with power-law sizes and classes with Zipf-like shares, drawn from the seed."""
    count = recipe.nodes[node_type].count
    starts = _community_starts(document_key(seed, "sizes of {}", node_type), count, *recipe.community_sizes)
    classes = _community_classes(document_key(seed, "classes of {}", node_type), len(starts) - 1, recipe.classes)
    grouped = np.argsort(classes, kind="stable").astype(np.int32)
    class_ptr = np.searchsorted(classes[grouped], np.arange(recipe.classes + 1)).astype(np.int64)
    rank = np.empty(len(classes), np.int32)
    rank[grouped] = np.arange(len(classes)) - class_ptr[classes[grouped]]
    sizes = np.diff(starts)[grouped]
    total = np.cumsum(sizes)
    before = np.concatenate([[0], total])[class_ptr[classes[grouped]]]
    rows = max(1, int(np.ceil(np.sqrt(count))))
    columns = -(-count // rows)
    numbering = Numbering(document_key(seed, "numbers of {}", node_type), rows, columns, count)
    return VertexLayout(numbering, starts, classes, rank, class_ptr, grouped, total - before)


def vertex_communities(layout: VertexLayout, start: int, stop: int) -> Array:
    """The community of each vertex in [start, stop)."""
    out = np.empty(stop - start, np.int32)
    _communities(layout.numbering, layout.starts, start, out)
    return out


@njit(nogil=True, cache=True)
def _communities(numbering: Numbering, starts: Array, start: int, out: Array) -> None:
    for i in range(out.shape[0]):
        position = unscramble(numbering, start + i)
        out[i] = community_at(starts, position)


@njit(nogil=True, cache=True, inline="always")
def _half(key: np.uint64, turn: int, value: int, bound: int) -> int:
    bits = mix(key + np.uint64(turn) * _STEP + np.uint64(value)) >> _HIGH_HALF
    return int((bits * np.uint64(bound)) >> _HIGH_HALF)


@njit(nogil=True, cache=True)
def scramble(numbering: Numbering, position: int) -> int:
    """The vertex number at a position: a Feistel network on Z_rows x Z_columns, repeated until it lands inside."""
    key, rows, columns = numbering.key, numbering.rows, numbering.columns
    value = position
    while True:
        left = int(value / columns)  # exact, and faster than dividing integers
        right = value - left * columns
        for turn in range(_ROUNDS):
            left += _half(key, 2 * turn, right, rows)
            if left >= rows:
                left -= rows
            right += _half(key, 2 * turn + 1, left, columns)
            if right >= columns:
                right -= columns
        value = left * columns + right
        if value < numbering.size:
            return value


@njit(nogil=True, cache=True)
def unscramble(numbering: Numbering, vertex: int) -> int:
    """The position of a vertex number: `scramble` backwards."""
    key, rows, columns = numbering.key, numbering.rows, numbering.columns
    value = vertex
    while True:
        left = int(value / columns)  # exact, and faster than dividing integers
        right = value - left * columns
        for back in range(_ROUNDS):
            turn = _ROUNDS - 1 - back
            right -= _half(key, 2 * turn + 1, left, columns)
            if right < 0:
                right += columns
            left -= _half(key, 2 * turn, right, rows)
            if left < 0:
                left += rows
        value = left * columns + right
        if value < numbering.size:
            return value


@njit(nogil=True, cache=True)
def community_at(starts: Array, position: int) -> int:
    """The community whose range holds a position."""
    low, high = 0, starts.shape[0] - 1
    while high - low > 1:
        middle = (low + high) >> 1
        if starts[middle] <= position:
            low = middle
        else:
            high = middle
    return low


@njit(nogil=True, cache=True)
def permuted(order: Numbering, start: int, out: Array) -> None:
    """Positions of start, start + 1, ... in a random order, without storing the order."""
    for i in range(out.shape[0]):
        out[i] = scramble(order, start + i)


def _community_starts(key: np.uint64, count: int, smallest: int, largest: int) -> Array:
    # In a small graph no community may exceed a twentieth of it, or there would be too few of them.
    largest = max(2, min(largest, count // 20))
    smallest = max(1, min(smallest, largest // 2))
    starts, counter = [0], 0
    while starts[-1] < count:
        draws = _power_draws(key, counter, 1024, smallest, largest)
        counter += 1024
        starts.extend((starts[-1] + np.cumsum(draws)).tolist())
    bounds = np.array(starts, np.int64)
    bounds = bounds[: int(np.searchsorted(bounds, count)) + 1]
    bounds[-1] = count
    return bounds


@njit(cache=True)
def _power_draws(key: np.uint64, counter: int, amount: int, smallest: int, largest: int) -> Array:
    """Sizes with density ~ size^-2 between the bounds."""
    out = np.empty(amount, np.int64)
    for i in range(amount):
        t = unit(draw(key, np.uint64(counter + i)))
        out[i] = int(1.0 / (1.0 / smallest - t * (1.0 / smallest - 1.0 / largest)))
    return out


def _community_classes(key: np.uint64, communities: int, classes: int) -> Array:
    """Shares proportional to rank^-0.6. The first communities get one class each so that every class exists."""
    shares = np.arange(1, classes + 1) ** -0.6
    ends = np.cumsum(shares) / shares.sum()
    chosen = np.minimum(np.searchsorted(ends, unit_draws(key, communities)), classes - 1).astype(np.int32)
    dealt = min(classes, communities)
    chosen[:dealt] = np.arange(dealt)
    return chosen


# Features, labels and splits of synthetic vertices.

_LOW = np.uint64(0xFFFF)
_S16, _S32, _S48 = np.uint64(16), np.uint64(32), np.uint64(48)
_ROOT_3 = 1.7320508075688772


class VertexBlock(NamedTuple):
    """Rows [start, start + n) of one node type."""

    rows: int
    x: Array | None
    y: Array | None
    order: Array | None
    """Place of each vertex in the random order that splits are cut from."""


class VertexMaker:
    """Makes any block of a node type's rows from the recipe and the seed."""

    def __init__(self, recipe: GraphRecipe, node_type: str, layout: VertexLayout, seed: int) -> None:
        self.recipe, self.layout = recipe, layout
        self.node = recipe.nodes[node_type]
        self._noise_key = document_key(seed, "features of {}", node_type)
        self._label_key = document_key(seed, "labels of {}", node_type)
        self._order_key = document_key(seed, "splits of {}", node_type)
        self._centres = np.zeros((recipe.classes, self.node.features), np.float32)
        _class_centres(document_key(seed, "centres"), self._centres)
        if self.node.features:
            self._centres *= recipe.separation / np.sqrt(2.0 * self.node.features)

    def block(self, start: int, stop: int) -> VertexBlock:
        """The vertices' rows [start, stop): features, labels and order."""
        classes = self.layout.classes[vertex_communities(self.layout, start, stop)]
        return VertexBlock(stop - start, self._features(start, classes), *self._labels(start, classes))

    def _features(self, start: int, classes: Array) -> Array | None:
        if not self.node.features:
            return None
        x = np.empty((len(classes), self.node.features), np.float32)
        _noisy_centres(self._noise_key, start, classes, self._centres, x)
        return x.astype(self.recipe.feature_dtype, copy=False)

    def _labels(self, start: int, classes: Array) -> tuple[Array | None, Array | None]:
        if self.node.splits is None:
            return None, None
        order = np.empty(len(classes), np.int64)
        permuted(self.layout.numbering._replace(key=self._order_key), start, order)
        y = classes.astype(np.int64)
        _noisy_labels(self._label_key, start, self.recipe.label_noise, self.recipe.classes, y)
        y[order >= sum(self.node.splits)] = -1
        return y, order


@njit(nogil=True, cache=True, inline="always")
def _normal(bits: np.uint64) -> float:
    """Close to a standard normal: the centred sum of four 16-bit uniforms of one draw."""
    total = (bits & _LOW) + ((bits >> _S16) & _LOW) + ((bits >> _S32) & _LOW) + (bits >> _S48)
    return (float(total) / 65536.0 - 2.0) * _ROOT_3


@njit(cache=True)
def _class_centres(key: np.uint64, out: Array) -> None:
    for c in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[c, j] = _normal(draw(mix(key ^ np.uint64(c)), np.uint64(j)))


@njit(nogil=True, cache=True)
def _noisy_centres(key: np.uint64, start: int, classes: Array, centres: Array, out: Array) -> None:
    for i in range(out.shape[0]):
        row_key = mix(key ^ np.uint64(start + i))
        for j in range(out.shape[1]):
            out[i, j] = centres[classes[i], j] + _normal(mix(row_key + np.uint64(j + 1) * _STEP))


@njit(nogil=True, cache=True)
def _noisy_labels(key: np.uint64, start: int, share: float, classes: int, y: Array) -> None:
    for i in range(y.shape[0]):
        row = np.uint64(start + i)
        if unit(draw(key, row)) < share:
            y[i] = below(draw(mix(key), row), classes)
