"""Rate policies: those that look at single flows first, then those that look at coflows."""

from collections.abc import Mapping
from functools import partial

import numpy as np

from penstock.graph.arrays import Array
from penstock.kernels import njit
from penstock.simulate.engine import Executor
from penstock.simulate.levels import durations_alone, tails
from penstock.simulate.state import (
    BY_ARRIVAL,
    BY_TIME_LEFT,
    PRIORITY,
    PROPORTIONAL,
    Case,
    RatePolicy,
    Terms,
    by_rank,
    terms_of,
)
from penstock.simulate.timeline import step_seconds

# `fair`: max-min fair rates by progressive filling. What `oes` leaves unused is given to flows that can use it. All
# flows count alike: the behaviour of a network that knows nothing of coflows (Megatron's case), and approximately that
# of long-lived TCP flows with equal round-trip times.

FAIR = RatePolicy("fair", PRIORITY, terms_of)


# `oes` (DGTP): every link is divided equally among its active flows, and a flow gets the least of its links' shares. On
# a star this is min(Bin / in-degree, Bout / out-degree), degrees counting active flows. DGTP works in time steps; rates
# change only when something starts or ends, so continuous time is exact. Its listing starts every task at once, its
# text only those that wait for nothing: we follow the text.

OES = RatePolicy("oes", PROPORTIONAL, terms_of)


# `fifo`: flows in the order in which they started, each takes all that is left along its path. DGTP says only that
# DistDGL sends from FIFO queues. One order for the whole network is ours; flows that start in the same instant are
# ordered by iteration, then by number.

FIFO = RatePolicy("fifo", BY_ARRIVAL, terms_of)


# `mrtf` (a baseline of DGTP): the flow with the least remaining time first; each takes all that is left along its path.
# Remaining time is bytes left over the path's rate when nothing else flows; DGTP does not define it. The order is
# updated whenever something starts or ends, and a flow in service may be preempted.

MRTF = RatePolicy("mrtf", BY_TIME_LEFT, terms_of)


# `iteration-first` (ours): flows of an earlier iteration go before those of a later one; max-min among equals. Batches
# that are needed sooner do not wait for prefetching.

ITERATION_FIRST = by_rank(
    "iteration-first", lambda case: np.arange(len(case.amounts.sizes), dtype=np.int64)[:, None].copy()
)


# `critical-path` (ours): the flow with the least slack first; max-min among those of similar slack. A flow's tail is
# the longest chain from its start to the end of the last iteration, each item as long as it takes alone. The longer the
# tail, the less slack, the earlier the rank; a rank is as wide as a sixteenth of the mean iteration on the longest
# chain. Measured on the papers100M setting: tails without contention beat DGTP's crowded ones by -0.2 to 7 %, and
# narrow ranks beat wide ones, most where samplers are away from their workers.

RANKS_PER_ITERATION = 16


def _slack_ranks(case: Case) -> Array:
    remaining = tails(case, durations_alone(case))
    longest, flows = remaining.max(), remaining[:, case.shape.tasks :]
    step = max(longest / (RANKS_PER_ITERATION * len(remaining)), np.finfo(np.float64).tiny)
    return np.asarray(np.floor((longest - flows) / step), np.int64)


CRITICAL_PATH = by_rank("critical-path", _slack_ranks)


# The types of flows that the coflow policies distinguish.

EP, PP, DP, OTHER = "ep", "pp", "dp", "other"
TYPES = {
    "ep-forward": EP,
    "ep-backward": EP,
    "pp-forward": PP,
    "pp-backward": PP,
    "pp-interleaved-forward": PP,
    "pp-interleaved-backward": PP,
    "reduce": DP,
    "gather": DP,
    "gradient": DP,
    "parameters": DP,
    "ring": DP,
    "gradients": DP,
    "weights": DP,
    "row gradients": DP,
    "rows": DP,
}
"""The type of a kind of flow: experts' all-to-alls, between stages, over data ranks; a GNN's gradients are the last."""


def rank_by_kind(case: Case, ranks: Mapping[str, int], rest: int) -> Array:
    """int64 [1, flows]: the rank of each flow's kind, or `rest`."""
    return np.array([[ranks.get(kind, rest) for kind in case.kinds]], np.int64)


# `hermod` (Hermod): strict priority by step, microbatch, type and layer. Within a microbatch, experts' all-to-alls and
# what passes between stages go before gradients (experts before stages where chunks are interleaved), and lower layers
# before higher ones. Parameters that are gathered for the next step count as its first microbatch's, and there the
# layer counts before the type: what the front layers need comes first. A GNN's batches are its steps: what an earlier
# batch needs goes first, and of one batch gradients and parameters first. Open in Hermod: "a DP coflow competes by
# layer" does not define an order of three factors; counting gathers as the first microbatch of the next step does, and
# agrees with all of its cases.

_FIRST, _SECOND, _LAST = range(3)
_ORDER = dict.fromkeys(TYPES, _FIRST) | {
    "pp-interleaved-forward": _SECOND,
    "pp-interleaved-backward": _SECOND,
    "reduce": _LAST,
    "gather": _LAST,
    "batch": _SECOND,
    "blocks": _SECOND,
    "lists": _SECOND,
}


def model_ranks(case: Case) -> Array:
    """int64 [iterations, flows]: the order of the coflows, from their factors."""
    kinds = rank_by_kind(case, _ORDER, _LAST)[0]
    gathers, reductions = (np.array([kind == each for kind in case.kinds], bool) for each in ("gather", "reduce"))
    microbatch = case.microbatches.astype(np.int64)
    layer = case.layers.astype(np.int64)
    widths = (int(microbatch.max(initial=0)) + 1, max(3, int(layer.max(initial=0)) + 1) + 1)
    by_layer = microbatch == 0
    higher, lower = np.where(by_layer, layer, kinds), np.where(by_layer, kinds, layer)
    # Reductions come last in their microbatch, also if it is the only one.
    higher, lower = np.where(reductions, widths[1] - 1, higher), np.where(reductions, layer, lower)
    step = np.arange(len(case.amounts.sizes), dtype=np.int64)[:, None] + gathers[None, :]
    return np.asarray(((step * widths[0] + microbatch) * widths[1] + higher) * widths[1] + lower)


HERMOD = by_rank("hermod", model_ranks)


# `slack` (ours): the coflow that can wait least goes first, by the step's own critical path. A coflow's tail is the
# longest chain from its start to the end of the last step; the longer, the earlier its turn. Tails depend on how long
# flows take, and that on the order: so the order is found in rounds, each from the simulated times of the best order so
# far. The rounds start from the model's factors (`hermod`), from no order at all (`fair`) and from times without
# contention, and the order with the shortest step wins: an order worse than one of these is never taken. The result is
# an order of coflows, to be set before training starts, as the factors are.

_ROUNDS = 4
_SAME = 1e-9  # relative: tails closer than this are one rank


def slack_orders(case: Case) -> list[Array]:
    """int64 [iterations, flows] each: the orders tried, the best first."""
    alike = np.zeros(case.amounts.sizes.shape, np.int64)
    ranks = [model_ranks(case), alike, _by_tails(case, durations_alone(case))]
    tried = [_tried(case, each) for each in ranks]
    for _ in range(_ROUNDS):
        best = min(range(len(tried)), key=lambda k: tried[k][0])
        ranks.append(_by_tails(case, tried[best][1]))
        tried.append(_tried(case, ranks[-1]))
        if tried[-1][0] >= tried[best][0]:
            break
    return [ranks[k] for k in sorted(range(len(tried)), key=lambda k: tried[k][0])]


def _by_tails(case: Case, durations: Array) -> Array:
    """Ranks by the longest tail of a coflow's flows, longest first."""
    remaining = tails(case, durations)[:, case.shape.tasks :]
    longest = np.zeros((len(remaining), int(case.coflows.max(initial=0)) + 1))
    for n in range(len(remaining)):
        np.maximum.at(longest[n], case.coflows, remaining[n])
    whole = float(longest.max(initial=0)) or 1.0
    place = np.round((whole - longest) / (whole * _SAME)).astype(np.int64)
    _, ranks = np.unique(place, return_inverse=True)
    return np.ascontiguousarray(ranks.reshape(place.shape)[:, case.coflows], np.int64)


def _tried(case: Case, ranks: Array) -> tuple[float, Array]:
    """Seconds of a step under an order, and the duration of every item."""
    record = Executor().run(PRIORITY, case, terms_of(case, rank=ranks), times=True).record
    return step_seconds(case, record.ends), record.ends - record.starts


SLACK = by_rank("slack", lambda case: slack_orders(case)[0], slack_orders)


# `omcoflow` (OMCoflow, a baseline of DGTP): rates inside a coflow so that its flows would end together if it were
# alone; coflows share in proportion. The flows of one coflow number and iteration (by default those into one task) are
# a coflow. Alone, it would take G = max over links of its bytes on the link / capacity, each flow at bytes / G. With
# others, every link is divided in proportion to these rates, and no flow is faster than alone. DGTP gives no formula
# for flows that start at different times: G is that of the whole coflow, known when its first flow starts.


def _terms_in_proportion(case: Case) -> Terms:
    by_coflow = np.argsort(case.coflows, kind="stable").astype(np.int32)
    alone = np.zeros_like(case.amounts.sizes)
    routes = case.routes
    _seconds_alone(
        by_coflow,
        case.coflows,
        case.amounts.sizes,
        routes.flow_path,
        routes.paths,
        routes.path_links,
        routes.path_copies,
        routes.links,
        alone,
    )
    weight = np.divide(case.amounts.sizes, alone, out=np.zeros_like(alone), where=alone > 0)
    return Terms(weight, alone, np.zeros((1, 1), np.int64), 1.0)


@njit(nogil=True, cache=True)
def _seconds_alone(
    by_coflow: Array,
    coflows: Array,
    sizes: Array,
    flow_path: Array,
    paths: Array,
    path_links: Array,
    path_copies: Array,
    links: Array,
    out: Array,
) -> None:
    """Seconds that a flow's whole coflow would take alone, for every iteration and flow that crosses a link."""
    load = np.zeros(links.shape[0])
    for n in range(sizes.shape[0]):
        first = 0
        while first < by_coflow.shape[0]:
            last, longest = first, 0.0
            while last < by_coflow.shape[0] and coflows[by_coflow[last]] == coflows[by_coflow[first]]:
                path = flow_path[by_coflow[last]]
                if path >= 0:
                    for at in range(paths[path].first, paths[path].last):
                        link = path_links[at]
                        load[link] += sizes[n, by_coflow[last]] * path_copies[at]
                        longest = max(longest, load[link] / links[link].capacity)
                last += 1
            for k in range(first, last):
                path = flow_path[by_coflow[k]]
                if path >= 0:
                    out[n, by_coflow[k]] = longest
                    for at in range(paths[path].first, paths[path].last):
                        load[path_links[at]] = 0.0
            first = last


OMCOFLOW = RatePolicy("omcoflow", PROPORTIONAL, _terms_in_proportion)


# `bytescheduler`: what belongs to a layer nearer the front goes first, as the next step needs it sooner.

BYTESCHEDULER = by_rank("bytescheduler", lambda case: case.layers[None, :].astype(np.int64))


# `ep-over-dp` (Lina): in the backward pass experts' all-to-alls go before all else; the rest share as equals. Lina
# gives all-to-alls precedence over gradient reductions, and only where the two meet in the backward pass; it does not
# treat traffic between stages, so this shares with the reductions.

EP_OVER_DP = by_rank("ep-over-dp", lambda case: rank_by_kind(case, {"ep-backward": 0}, 1))


# `dp-first`, `pp-first` and `ep-first`: one type of coflow before all others, which share as equals.


def _first(case: Case, chosen: str) -> Array:
    return rank_by_kind(case, {kind: int(kind_type != chosen) for kind, kind_type in TYPES.items()}, 1)


DP_FIRST = by_rank(f"{DP}-first", partial(_first, chosen=DP))
PP_FIRST = by_rank(f"{PP}-first", partial(_first, chosen=PP))
EP_FIRST = by_rank(f"{EP}-first", partial(_first, chosen=EP))
