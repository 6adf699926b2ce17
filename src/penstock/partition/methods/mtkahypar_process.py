"""The process that runs Mt-KaHyPar: `python -m ... FOLDER PARTS EPSILON SEED THREADS`, arrays in FOLDER."""

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from penstock.graph.arrays import open_array, write_array


def main(folder: Path, parts: int, epsilon: float, seed: int, threads: int) -> None:
    """Partition the hypergraph of `offsets`, `pins` and `weights` and write `assignment.npy`."""
    import mtkahypar

    mtkahypar.set_seed(seed)
    partitioner = mtkahypar.initialize(threads, False)
    context = partitioner.context_from_preset(mtkahypar.PresetType.LARGE_K)
    context.set_partitioning_parameters(parts, epsilon, mtkahypar.Objective.KM1)
    context.logging = False
    hypergraph = _hypergraph(folder, partitioner, context)
    assignment = hypergraph.partition(context).get_partition()
    write_array(folder / "assignment.npy", np.array(assignment, np.int32))


def _hypergraph(folder: Path, partitioner: Any, context: Any) -> Any:
    # Slices of one memory view instead of lists: the binding reads any sequence, and nothing is copied.
    pins = np.ascontiguousarray(open_array(folder / "pins.npy")).data
    offsets = open_array(folder / "offsets.npy").tolist()
    nets = [pins[a:b] for a, b in pairwise(offsets)]
    weights = open_array(folder / "weights.npy").tolist()
    return partitioner.create_hypergraph(context, len(nets), len(nets), nets, weights, [1] * len(nets))


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
