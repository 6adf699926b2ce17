"""`ps.loader`: batches for a loop of the user's own."""

from collections.abc import Sequence
from typing import Any

import torch

from penstock.api.opened_graph import opened
from penstock.train.loading.batch_loader import BatchLoader
from penstock.train.loading.options import make_loader_job
from penstock.train.loading.seed_source import Seeds


def loader(
    graph: Any,
    split: Seeds = "train",
    *,
    fanouts: Sequence[int | dict[str, int]] = (15, 10),
    batch_size: int = 1024,
    shuffle: bool | None = None,
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
    need no labels; or None for all vertices. Iterating gives an epoch of batches (`batch.x`, `batch.edge_index`,
    `batch.y`, `batch.n_id`, `batch.batch_size`, and `batch.blocks` for models of `ps.nn`), and iterating again gives
    the next one. With the same seed the batches are those that `ps.train` learns from.

    `shuffle` is True for the training split and False for others, where it is not given. In a loop of several
    processes `rank` and `world` give each its share: `batch_size` is that of one process. On a GPU the share `reserve`
    of its memory is left for the model. `splits` says where train, val and test come from (job field `split`).
    `fields` are those of a job that concern data, sampling, negatives, the device and the pipeline (docs/python.md).
    """
    given = {
        "fanouts": fanouts if isinstance(fanouts, int | str) else list(fanouts),
        "batch_size": batch_size,
        "device": str(device),
        "seed": seed,
        **fields,
    }
    job = make_loader_job(given, splits)
    return BatchLoader(opened(graph), job, split, shuffle, rank, world, reserve)
