"""Workloads with equal parts, simulated with one representative of each: the same times, for a fraction of the work.

Items (tasks and flows), paths and links are coloured. Items of one colour bring the same amounts and terms in every
iteration, wait for as many items of every colour, and cross paths of one colour; paths of one colour carry as many
flows of every colour and cross links of one colour; links of one colour have one capacity and as many paths of every
colour. By induction over time, items of one colour start and end together under every way of sharing that treats equals
equally. One of each colour is then enough, with a count of how many like it share a link (Routes' copies).

The colours come from colour refinement: hashes of what an item waits for and crosses, until no colour splits. Colours
have 64 bits; among millions of items two different ones collide with a probability below one in a million.
"""

from typing import NamedTuple

import numpy as np

from penstock.graph.arrays import Array
from penstock.graph.hashing import draw, key_of
from penstock.kernels import njit
from penstock.simulate.state import PATH, Case, Routes, Terms, TimelineRecord, Transport, crossed_routes, shape_from
from penstock.simulate.workload import Amounts, sorted_items

MANY = 20_000
"""Items of all iterations from which on searching for symmetries pays."""
_MOST_SWEEPS = 100


class Quotient(NamedTuple):
    """A case with one item, path and link of each colour, and the colour of every item of the whole."""

    case: Case
    terms: Terms
    classes: Array  # int32 [items]: number of an item's colour, that is, its item in `case`
    tasks: int  # of the whole

    def expanded(self, record: TimelineRecord) -> TimelineRecord:
        """The record of all items, from that of one of each colour."""
        iterations = len(self.case.amounts.seconds)
        owner = record.owner
        if len(owner):
            flows = self.classes[self.tasks :] - self.case.shape.tasks
            owner = np.ascontiguousarray(owner.reshape(iterations, -1)[:, flows]).reshape(-1)
        starts, ends = (each[:, self.classes] if len(each) else each for each in (record.starts, record.ends))
        late = record.late
        if len(late):
            late = late[:, self.classes[self.tasks :] - self.case.shape.tasks]
        return TimelineRecord(starts, ends, owner, record.changes, late)


def quotient_of(case: Case, terms: Terms) -> Quotient | None:
    """The case with one item of each colour; None where more than half of the items are different.

    Nor where equal flows differ: by who times out, or by which of the equal-cost links they cross.
    """
    if (case.transport is not None and np.isfinite(case.transport.buffer)) or (case.routes.path_copies > 1).any():
        return None
    items, paths, links = _initial_colours(case, terms)
    counts = (0, 0, 0)
    for _ in range(_MOST_SWEEPS):
        _sweep(case, items, paths, links)
        classes, chosen = _numbered(items, len(items) // 2)
        if len(chosen) == 0:
            return None
        path_classes, path_chosen = _numbered(paths, len(paths))
        link_classes, link_chosen = _numbered(links, len(links))
        found = (len(chosen), len(path_chosen), len(link_chosen))
        if found == counts:
            routes = _routes(case, classes, chosen, path_classes, path_chosen, link_classes, link_chosen)
            few = _quotient(case, terms, classes, chosen, routes)
            return few if case.transport is None else few._replace(case=_delayed(few.case, case.transport, path_chosen))
        counts = found
    return None


def _delayed(few: Case, transport: Transport, paths: Array) -> Case:
    """The case with a transport's terms of these paths of the whole."""
    latency, round_trip = (np.ascontiguousarray(each[paths]) for each in (transport.latency, transport.round_trip))
    return few._replace(transport=transport._replace(latency=latency, round_trip=round_trip))


def _initial_colours(case: Case, terms: Terms) -> tuple[Array, Array, Array]:
    """Colours of items by what they bring in every iteration, of paths all alike, of links by capacity."""
    durations = case.amounts.seconds * case.slowness
    items = np.empty(case.shape.tasks + case.shape.flows, np.uint64)
    tasks, flows = items[: case.shape.tasks], items[case.shape.tasks :]
    tasks[:], flows[:] = key_of(0, "tasks"), key_of(0, "flows")
    _fold_in(tasks, durations.view(np.uint64))
    _fold_in(flows, case.amounts.sizes.view(np.uint64))
    for each in (terms.weight, terms.size, terms.rank):
        if each is not case.amounts.sizes and each.shape[1] > 1:
            _fold_in(flows, np.ascontiguousarray(each).view(np.uint64))
    paths = np.full(len(case.routes.paths), key_of(0, "paths"))
    if case.transport is not None:
        _fold_in(paths, np.stack([case.transport.latency, case.transport.round_trip]).view(np.uint64))
    links = np.full(len(case.routes.links), key_of(0, "links"))
    _fold_in(links, np.ascontiguousarray(case.routes.links["capacity"])[None].view(np.uint64))
    return items, paths, links


@njit(nogil=True, cache=True)
def _fold_in(colours: Array, values: Array) -> None:
    """Fold every row of `values` [rows, colours] into the colours."""
    for row in range(values.shape[0]):
        for k in range(colours.shape[0]):
            colours[k] = draw(colours[k], values[row, k])


def _sweep(case: Case, items: Array, paths: Array, links: Array) -> None:
    """Refine colours once by what items wait for and cross, from the first item of an iteration to the last."""
    shape, routes = case.shape, case.routes
    _colour_items(shape.starts, shape.followers, shape.lags, case.order, shape.tasks, routes.flow_path, paths, items)
    _colour_routes(items[shape.tasks :], routes.flow_path, routes.path_links, routes.crossing_paths, paths, links)


@njit(nogil=True, cache=True)
def _colour_items(
    starts: Array, followers: Array, lags: Array, order: Array, tasks: int, flow_path: Array, paths: Array, items: Array
) -> None:
    """Sums of hashes represent the items that one waits for: independent of their order, but not of their number."""
    count = items.shape[0]
    waited = np.zeros(count, np.uint64)
    for item in range(count):
        for edge in range(starts[item], starts[item + 1]):
            if lags[edge] > 0:
                waited[followers[edge]] += draw(items[item], np.uint64(lags[edge]))
    for k in range(count):
        item = order[k]
        colour = draw(items[item], waited[item])
        if item >= tasks:
            path = flow_path[item - tasks]
            colour = draw(colour, paths[path] if path >= 0 else np.uint64(0))
        items[item] = colour
        for edge in range(starts[item], starts[item + 1]):
            if lags[edge] == 0:
                waited[followers[edge]] += draw(colour, np.uint64(0))


@njit(nogil=True, cache=True)
def _colour_routes(
    flows: Array, flow_path: Array, path_links: Array, crossing_paths: Array, paths: Array, links: Array
) -> None:
    """Paths by the flows they carry and the links they cross, links by the paths that cross them."""
    carried, crossed = np.zeros(paths.shape[0], np.uint64), np.zeros(links.shape[0], np.uint64)
    for flow in range(flows.shape[0]):
        if flow_path[flow] >= 0:
            carried[flow_path[flow]] += draw(flows[flow], np.uint64(1))
    for at in range(path_links.shape[0]):
        carried[crossing_paths[at]] += draw(links[path_links[at]], np.uint64(2))
    for path in range(paths.shape[0]):
        paths[path] = draw(paths[path], carried[path])
    for at in range(path_links.shape[0]):
        crossed[path_links[at]] += draw(paths[crossing_paths[at]], np.uint64(3))
    for link in range(links.shape[0]):
        links[link] = draw(links[link], crossed[link])


def _numbered(colours: Array, most: int) -> tuple[Array, Array]:
    """Colours numbered by first use, int32, and the first with each; both empty where there are more than `most`."""
    classes, chosen = np.empty(len(colours), np.int32), np.empty(most, np.int32)
    slots = np.full(1 << (2 * max(1, min(most + 1, len(colours)))).bit_length(), -1, np.int32)
    count = _number(colours, slots, classes, chosen)
    return (classes, chosen[:count]) if count >= 0 else (classes[:0], chosen[:0])


@njit(nogil=True, cache=True)
def _number(colours: Array, slots: Array, classes: Array, chosen: Array) -> int:
    """Number colours with an open-addressing hash table; -1 where `chosen` has no room left."""
    mask, count = slots.shape[0] - 1, 0
    for k in range(colours.shape[0]):
        slot = np.int64(colours[k] & np.uint64(mask))
        while slots[slot] >= 0 and colours[chosen[slots[slot]]] != colours[k]:
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            if count == chosen.shape[0]:
                return -1
            chosen[count] = k
            slots[slot] = count
            count += 1
        classes[k] = slots[slot]
    return count


def _routes(
    case: Case,
    classes: Array,
    chosen: Array,
    path_classes: Array,
    path_chosen: Array,
    link_classes: Array,
    link_chosen: Array,
) -> Routes:
    """One path and one link of each colour, with how many like them there are on one link."""
    whole, tasks = case.routes, case.shape.tasks
    stands = np.zeros(len(whole.links), bool)
    stands[link_chosen] = True
    seen = np.flatnonzero(stands[whole.path_links])
    keys = path_classes[whole.crossing_paths[seen]].astype(np.int64) * len(link_chosen)
    keys, copies = np.unique(keys + link_classes[whole.path_links[seen]], return_counts=True)
    of_path, path_links = np.divmod(keys, len(link_chosen))
    paths = np.empty(len(path_chosen), PATH)
    numbers = np.arange(len(paths))
    paths["first"], paths["last"] = np.searchsorted(of_path, numbers), np.searchsorted(of_path, numbers, "right")
    flow_path = np.append(path_classes, np.int32(-1))[whole.flow_path[chosen[chosen >= tasks] - tasks]]
    stands = np.zeros(len(whole.paths) + 1, bool)  # the last is for flows within a machine: never
    stands[path_chosen] = True
    on_chosen = classes[tasks:][stands[whole.flow_path]] - np.int32((chosen < tasks).sum())
    flow_copies = np.maximum(1, np.bincount(on_chosen, minlength=len(flow_path))).astype(np.int32)
    capacities = np.ascontiguousarray(whole.links["capacity"][link_chosen])
    return crossed_routes(
        flow_path, paths, path_links.astype(np.int32), capacities, copies.astype(np.int32), flow_copies
    )


def _quotient(case: Case, terms: Terms, classes: Array, chosen: Array, routes: Routes) -> Quotient:
    whole = case.shape
    tasks, flows = chosen[chosen < whole.tasks], chosen[chosen >= whole.tasks] - whole.tasks
    before, after, lags = _edges(case, classes, chosen)
    shape = shape_from(len(tasks), len(flows), before, after, lags, len(whole.waits))
    few = Case(
        shape,
        sorted_items(len(chosen), before, after, lags),
        case.coflows[flows],
        routes,
        Amounts(*(np.ascontiguousarray(case.amounts[k][:, each]) for k, each in enumerate((tasks, flows)))),
        case.slowness[tasks],
        tuple(case.task_kinds[each] for each in tasks.tolist()),
        tuple(case.kinds[each] for each in flows.tolist()),
        case.microbatches[flows],
        case.layers[flows],
    )
    weight, size, rank = (
        np.ascontiguousarray(each[:, flows]) if each.shape[1] > 1 else each
        for each in (terms.weight, terms.size, terms.rank)
    )
    return Quotient(few, Terms(weight, size, rank, terms.ceiling), classes, whole.tasks)


def _edges(case: Case, classes: Array, chosen: Array) -> tuple[Array, Array, Array]:
    """What the chosen items wait for, each colour once: before, after, lags."""
    shape = case.shape
    stands = np.zeros(len(classes), bool)
    stands[chosen] = True
    kept = np.flatnonzero(stands[shape.followers])
    before = np.searchsorted(shape.starts, kept, "right") - 1
    furthest, count = int(shape.lags.max(initial=0)) + 1, len(chosen)
    keys = (classes[before].astype(np.int64) * count + classes[shape.followers[kept]]) * furthest + shape.lags[kept]
    keys, lags = np.divmod(np.unique(keys), furthest)
    before, after = np.divmod(keys, count)
    return before.astype(np.int32), after.astype(np.int32), lags.astype(np.int32)
