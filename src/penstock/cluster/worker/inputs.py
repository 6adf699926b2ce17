"""What a model reads of a vertex where features are at their owners."""

import torch

from penstock.cluster.worker.cut_graph import CutGraph, Parts
from penstock.errors import PenstockError
from penstock.pipeline.carrying import HostCarrier
from penstock.train.inputs import Inputs, divide_by_sum
from penstock.train.job import Job


class PartedInputs(Inputs):
    """Features by new number, pulled from whoever holds them."""

    def __init__(self, graph: CutGraph, parts: Parts, job: Job) -> None:
        self.device, self._field, self._repeats = torch.device("cpu"), job.features, False
        said = parts.describe(job.label)[0]["nodes"]
        having = [name for name in graph.nodes if job.features in said[name]["fields"]]
        if len(having) < len(graph.nodes):
            lacking = ", ".join(name for name in graph.nodes if name not in having)
            raise PenstockError(
                f"Vertices of type {lacking} have no features {job.features!r}, and embeddings are not learned on"
                " several machines yet: train on one, or give them features."
            )
        self.fields = dict.fromkeys(having, job.features)
        self.store, self.tables, self.placed_tables = parts.store, {}, {}
        self.scale = divide_by_sum if job.scale_features == "rows" else None
        self.widths = {}
        for name in graph.nodes:
            shape = parts.store.row_shape(f"{name}/{job.features}")
            if len(shape) != 1 or parts.store.dtype(f"{name}/{job.features}").kind not in "biuf":
                raise PenstockError(f"Features {job.features!r} of {name!r} are no rows of numbers.")
            self.widths[name] = shape[0]
        self.carrier = HostCarrier(self.store, self.fields, self.scale)
