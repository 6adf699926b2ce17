"""Features, labels and splits of synthetic vertices."""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.generate.layout import VertexLayout, permuted, vertex_communities
from penstock.graph.generate.recipe import Recipe
from penstock.graph.hashing import below, document_key, draw, mix, unit
from penstock.kernels import njit

_STEP = np.uint64(0x9E3779B97F4A7C15)
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

    def __init__(self, recipe: Recipe, node_type: str, layout: VertexLayout, seed: int) -> None:
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
        """The rows [start, stop)."""
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
