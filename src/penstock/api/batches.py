"""`ps.loader`: batches for a loop of the user's own."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.graph.schema import edge_key
from penstock.train.loading.batch_loader import BatchLoader
from penstock.train.loading.given_graph import EdgeExamples, chosen_examples, given_graph
from penstock.train.loading.options import OF_NEGATIVES, make_loader_job
from penstock.train.loading.seed_source import AUTO, Seeds


def loader(
    graph: Any,
    split: Seeds = AUTO,
    *,
    fanouts: Sequence[int | Mapping[Any, int]] | Mapping[Any, Sequence[int]] | None = None,
    batch_size: int | None = None,
    shuffle: bool | None = None,
    edge_label_index: Any = None,
    edge_label: Any = None,
    transform: Callable[[Any], Any] | None = None,
    device: str | torch.device = "auto",
    seed: int = 0,
    rank: int = 0,
    world: int = 1,
    splits: str = "auto",
    reserve: float = 0.5,
    **fields: Any,
) -> BatchLoader:
    """Batches for a loop of your own, drawn and gathered ahead as `ps.train` does.

    `graph` is anything `ps.load` recognises. `split` is train, val or test; or numbers or a mask of vertices, which
    need no labels, `("paper", mask)` where there are several types; or None for all vertices. Without it, an epoch goes
    through the graph's training split, or through everything where it has none. Iterating gives an epoch of batches,
    and iterating again gives the next one. A batch has PyG's names: `x`, `edge_index`, `y`, `n_id`, `e_id`,
    `batch_size`, masks and all other fields; and `blocks` for models of `ps.nn`. With the same seed and `held_out` the
    batches are those that `ps.train` learns from.

    `edge_label_index` and `edge_label` are pairs to judge and their labels, as a graph of PyG's `RandomLinkSplit`
    brings them. `transform` is called with each batch. `shuffle` is True for the training split and False for others,
    where it is not given. In a loop of several processes `rank` and `world` give each its share: `batch_size` is that
    of one process. On a GPU the share `reserve` of its memory is left for the model. `splits` says where train, val and
    test come from (job field `split`). `fields` are those of a job that concern data, sampling, negatives, the device
    and the pipeline, and `as_pyg`, `drop_last`, `disjoint`, `subgraph_type`, `exclude_edges` (docs/python.md).
    """
    given = given_graph(graph)
    chosen = chosen_examples(given, edge_label_index, edge_label, fields.get("target"))
    if chosen is not None:
        if not isinstance(split, str):
            raise PenstockError(
                "ps.loader was given vertices and edge_label_index: give one of both.", code="conflicting-options"
            )
        kind = chosen.edge_type if isinstance(chosen, EdgeExamples) else chosen
        fields = {"task": "link-prediction", **fields, "target": edge_key(kind)}
        split, given = chosen if isinstance(chosen, EdgeExamples) else split, given._replace(examples={})
    sizes = {"fanouts": fanouts, "batch_size": batch_size}
    said = {name: value for name, value in sizes.items() if value is not None}
    job = make_loader_job({**said, "device": str(device), "seed": seed, **fields}, splits)
    asked = bool(OF_NEGATIVES & set(fields))
    return BatchLoader(given, job, split, shuffle, rank, world, reserve, transform, asked)
