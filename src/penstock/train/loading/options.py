"""The fields of a job that a loader takes, and the job that is made of them."""

from typing import Any

from pydantic import ValidationError

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import first_problem
from penstock.pipeline.options import PipelineOptions
from penstock.sampling.options import SamplerOptions
from penstock.train.data_options import DataOptions
from penstock.train.job import Job
from penstock.train.other_names import OTHER_NAMES

_OF_DATA = set(DataOptions.model_fields) - {"graph", "split"}
_OF_SAMPLERS = set(SamplerOptions.model_fields)
_OF_LINKS = {"negatives", "negatives_per_edge", "filtered", "corrupt", "held_out"}
_OF_BATCHES = {"batch_size", "layers", "seed", "draws", "threads", "reuse_batches", "reuse_mb"}
_OF_DEVICES = {"device", "placement", "sample_on", "feature_type", "device_share"}
_OF_PIPELINES = set(PipelineOptions.model_fields) - {"trace_batches"}
LOADER_FIELDS = frozenset(_OF_DATA | _OF_SAMPLERS | _OF_LINKS | _OF_BATCHES | _OF_DEVICES | _OF_PIPELINES)
"""Fields of a job that `ps.loader` takes by their names. Those left out are of the model and of its training."""


_OF_OTHERS = {**OTHER_NAMES, "input_nodes": "split"}
"""What loaders of PyG call them; a job's `split` is another thing."""


class LoaderJob(Job):
    """A job whose batches are for any model."""

    @property
    def needs_totals(self) -> bool:
        """Blocks say how long whole lists are, whichever model reads them."""
        return True

    @property
    def has_own_module(self) -> bool:
        """The model is the user's, and reads weights of edges as rows."""
        return True


def make_loader_job(fields: dict[str, Any], splits: str) -> LoaderJob:
    """A checked job of a loader's arguments; `splits` is where the graph's splits come from (job field `split`)."""
    for name in fields:
        if name not in LOADER_FIELDS:
            why = "is a field of training, not of batches" if name in Job.model_fields else "is unknown"
            other = _OF_OTHERS.get(name, name)
            hint = f": use {other}." if other in (*LOADER_FIELDS, "split") else nearest(name, sorted(LOADER_FIELDS))
            raise PenstockError(f"ps.loader: {name!r} {why}{hint}", code="unknown-name")
    if fields.get("sampler") == "whole":
        raise PenstockError(
            "ps.loader gives batches, and sampler whole makes none: use fanouts of -1, or ps.train.",
            code="unsupported-combination",
        )
    try:
        return LoaderJob.model_validate({**fields, "split": splits})
    except ValidationError as error:
        raise PenstockError(f"ps.loader: {first_problem(error)}.", code="invalid-document") from None
