"""The queues of the engine: a pairing heap of flows per group, a heap of running tasks, a tree of groups' next ends.

A pairing heap is stored in the records of flow instances (key, child, sibling), so that any number of heaps share one
allocation and merging costs one comparison.
"""

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.inline_kernels import inner
from penstock.kernels import njit

NONE = -1


@inner
def meld(a: int, b: int, flows: Array) -> int:
    """Merge two heaps, given by their roots; equal keys are ordered by instance, so that nothing depends on history."""
    if a == NONE:
        return b
    if b == NONE:
        return a
    if flows[b].key < flows[a].key or (flows[b].key == flows[a].key and b < a):
        a, b = b, a
    flows[b].sibling = flows[a].child
    flows[a].child = b
    return a


@inner
def without_root(root: int, flows: Array) -> int:
    """The heap without its root: pair the children, then merge the pairs from the last back."""
    pairs, each = NONE, int(flows[root].child)
    while each != NONE:
        first, second = each, int(flows[each].sibling)
        flows[first].sibling = NONE
        joined, each = first, NONE
        if second != NONE:
            each = int(flows[second].sibling)
            flows[second].sibling = NONE
            joined = meld(first, second, flows)
        flows[joined].sibling = pairs
        pairs = joined
    out = NONE
    while pairs != NONE:
        rest = int(flows[pairs].sibling)
        flows[pairs].sibling = NONE
        out = meld(out, pairs, flows)
        pairs = rest
    return int(out)


@inner
def set_leaf(tree: Array, leaf: int, value: float) -> None:
    """Put a group's next end into the tree; updates only as far up as a minimum changes."""
    node = (tree.shape[0] >> 1) + leaf
    tree[node] = value
    node >>= 1
    while node >= 1:
        least = min(tree[2 * node], tree[2 * node + 1])
        if tree[node] == least:
            break
        tree[node] = least
        node >>= 1


@inner
def least_leaf(tree: Array) -> int:
    """The group whose end is next."""
    leaves = tree.shape[0] >> 1
    node = 1
    while node < leaves:
        node *= 2
        if tree[node + 1] < tree[node]:
            node += 1
    return int(node - leaves)


@inner
def push_task(ends: Array, tasks: Array, size: int, end: float, task: int) -> None:
    """Add a running task to the binary heap of `size` tasks."""
    k = size
    while k > 0:
        parent = (k - 1) >> 1
        if ends[parent] <= end:
            break
        ends[k], tasks[k] = ends[parent], tasks[parent]
        k = parent
    ends[k], tasks[k] = end, task


@inner
def pop_task(ends: Array, tasks: Array, size: int) -> int:
    """Remove the task that ends first from the binary heap of `size` tasks."""
    out, size = tasks[0], size - 1
    end, task = ends[size], tasks[size]
    k = 0
    while 2 * k + 1 < size:
        least = 2 * k + 1
        if least + 1 < size and ends[least + 1] < ends[least]:
            least += 1
        if end <= ends[least]:
            break
        ends[k], tasks[k] = ends[least], tasks[least]
        k = least
    ends[k], tasks[k] = end, task
    return int(out)


def tree_for(leaves: int) -> Array:
    """An empty tree for so many groups, float64; index 1 is the root."""
    return np.full(2 * leaves_for(leaves), np.inf)


@njit(nogil=True, cache=True)
def leaves_for(groups: int) -> int:
    """The power of two that has room for so many groups."""
    leaves = 1
    while leaves < groups:
        leaves *= 2
    return leaves
