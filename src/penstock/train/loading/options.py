"""The fields that a loader takes, what PyG calls them, and the job that is made of them."""

from collections.abc import Mapping
from typing import Any

from pydantic import Field, ValidationError

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import first_problem
from penstock.graph.schema import edge_key
from penstock.nn.layer_table import WITHOUT_LAYERS
from penstock.pipeline.options import PipelineOptions
from penstock.sampling.options import SamplerOptions
from penstock.sampling.sampler_table import SEEDS_ONLY
from penstock.train.data_options import DataOptions
from penstock.train.job import Job
from penstock.train.loading.subgraph_types import SubgraphType
from penstock.train.other_names import OTHER_NAMES


class LoaderJob(Job):
    """A job whose batches are for any model, and what a loader alone can be asked for."""

    disjoint: bool = Field(False, description="every seed has a neighbourhood of its own; `batch.batch` says whose")
    subgraph_type: SubgraphType = Field(
        "directional",
        description="edges of a batch: those that were drawn, their reverses too (bidirectional), or all between its"
        " vertices (induced)",
    )
    exclude_edges: bool = Field(True, description="tasks on edges: a batch's edges are not in its neighbourhoods")
    drop_last: bool = Field(False, description="leave out an epoch's last batch where it is smaller than the others")
    as_pyg: bool = Field(False, description="give each batch as PyG's Data or HeteroData")

    @property
    def needs_totals(self) -> bool:
        """Blocks say how long whole lists are, whichever model reads them."""
        return True

    @property
    def has_own_module(self) -> bool:
        """The model is the user's, and reads weights of edges as rows."""
        return True

    @property
    def names_edges(self) -> bool:
        """Edges bring their numbers and all their fields."""
        return True

    @property
    def has_disjoint_seeds(self) -> bool:
        """See `Job.has_disjoint_seeds`."""
        return self.disjoint

    @property
    def excludes_examples(self) -> bool:
        """See `Job.excludes_examples`."""
        return self.exclude_edges


_OF_DATA = set(DataOptions.model_fields) - {"graph", "split"}
_OF_SAMPLERS = set(SamplerOptions.model_fields)
OF_NEGATIVES = frozenset({"negatives", "negatives_per_edge", "filtered", "corrupt"})
_OF_BATCHES = {"held_out", "batch_size", "layers", "seed", "draws", "threads", "reuse_batches", "reuse_mb"}
_OF_DEVICES = {"device", "placement", "sample_on", "feature_type", "device_share"}
_OF_PIPELINES = set(PipelineOptions.model_fields) - {"trace_batches"}
_OWN = set(LoaderJob.model_fields) - set(Job.model_fields)
LOADER_FIELDS = frozenset(_OF_DATA | _OF_SAMPLERS | OF_NEGATIVES | _OF_BATCHES | _OF_DEVICES | _OF_PIPELINES | _OWN)
"""Fields of a job that `ps.loader` takes by their names. Those left out are of the model and of its training."""

PYG_ARGUMENTS: dict[str, str] = {
    "data": "give the graph first: ps.loader(data, ...).",
    "num_neighbors": "use fanouts; a mapping of edge types to lists is taken too.",
    "input_nodes": "use split, the second argument: ps.loader(data, mask), or ('paper', mask).",
    "input_time": "use seed_time, which names the field with the seeds' times.",
    "edge_label_time": "use seed_time, which names the field with the edges' times.",
    "time_attr": "use time, which names a field of edges, or node:NAME for one of vertices.",
    "temporal_strategy": "neighbours that are not later are drawn uniformly; last has no counterpart.",
    "weight_attr": "use weight.",
    "neg_sampling_ratio": "use negatives_per_edge (1.0: negatives_per_edge=1); it replaces one end of a true edge, with"
    " corrupt='both' each.",
    "neg_sampling": "use negatives_per_edge; the rows of triplets are batch.links.source_rows, destination_rows and"
    " negative_destination_rows.",
    "num_workers": "use sample_threads: threads draw ahead, and nothing has to be pickled.",
    "prefetch_factor": "use sample_depth and gather_depth, the batches that wait in each stage.",
    "persistent_workers": "leave it out: threads share the graph, and start in microseconds.",
    "worker_init_fn": "leave it out: there are no worker processes.",
    "multiprocessing_context": "leave it out: there are no worker processes.",
    "timeout": "leave it out: there are no worker processes to wait for.",
    "in_order": "leave it out: batches come in order.",
    "pin_memory": "leave it out: batches on the way to a GPU are gathered into pinned memory.",
    "pin_memory_device": "leave it out, and use device.",
    "generator": "use seed.",
    "filter_per_worker": "leave it out: features are gathered by the pipeline's threads.",
    "is_sorted": "leave it out: any order of edges is taken, and batch.e_id counts in yours.",
    "directed": "use subgraph_type='induced' for directed=False.",
    "neighbor_sampler": "use sampler, which names one (docs/samplers.md).",
    "node_sampler": "use sampler, which names one (docs/samplers.md).",
    "link_sampler": "use sampler, which names one (docs/samplers.md).",
    "batch_sampler": "give the vertices in your order, and shuffle=False.",
    "dataset": "give the graph first: ps.loader(data, ...).",
    "collate_fn": "use transform, which is called with each batch.",
    "custom_cls": "use as_pyg=True, and transform to make an object of your own.",
    "transform_sampler_output": "use transform, which is called with each batch.",
    "input_id": "leave it out: batch.input_id are the places of the seeds in what was given.",
    "num_samples": "use fanouts.",
    "num_steps": "leave it out: an epoch goes through all seeds.",
}
"""What arguments of PyG's loaders, and of torch's, are called here, or why they are not needed."""


def make_loader_job(fields: dict[str, Any], splits: str) -> LoaderJob:
    """A checked job of a loader's arguments; `splits` is where the graph's splits come from (job field `split`).

    Nothing is held out unless `held_out` is given.
    """
    for name in fields:
        if name not in LOADER_FIELDS:
            raise PenstockError(f"ps.loader: {name!r} {_why_not(name)}", code="unknown-name")
    if fields.get("sampler") == "whole":
        raise PenstockError(
            "ps.loader gives batches, and sampler whole makes none: use fanouts of -1, or ps.train.",
            code="unsupported-combination",
        )
    given = {"held_out": [0.0, 0.0], **fields, "fanouts": _hops(fields.get("fanouts")), "split": splits}
    if fields.get("sampler") == SEEDS_ONLY:
        # Of the models, one without layers is given the seeds alone.
        given["model"] = next(iter(WITHOUT_LAYERS))
    try:
        job = LoaderJob.model_validate(given)
    except ValidationError as error:
        raise PenstockError(f"ps.loader: {first_problem(error)}.", code="invalid-document") from None
    _check(job)
    return job


def _check(job: LoaderJob) -> None:
    if job.subgraph_type == "induced" and (job.disjoint or job.time is not None):
        raise PenstockError(
            "subgraph_type induced joins all vertices of a batch, and disjoint or `time` keep seeds apart: use"
            " directional or bidirectional.",
            code="conflicting-options",
        )


def _why_not(name: str) -> str:
    if name in PYG_ARGUMENTS:
        return f"is PyG's: {PYG_ARGUMENTS[name]}"
    why = "is a field of training, not of batches" if name in Job.model_fields else "is unknown"
    other = OTHER_NAMES.get(name, name)
    return f"{why}: use {other}." if other in LOADER_FIELDS else f"{why}{nearest(name, sorted(LOADER_FIELDS))}"


def _hops(fanouts: Any) -> Any:
    """Fan-outs as a job has them, hop by hop and relations by their keys; PyG has a list for each edge type."""
    if isinstance(fanouts, Mapping):
        lists = {_key(kind): numbers for kind, numbers in fanouts.items()}
        for key, numbers in lists.items():
            if isinstance(numbers, int) or len(numbers) != len(next(iter(lists.values()))):
                raise PenstockError(
                    f"ps.loader: fanouts of {key} are {numbers!r}: give a list for each edge type, with a number for"
                    " each hop.",
                    code="shape-mismatch",
                )
        return [dict(zip(lists, hop, strict=True)) for hop in zip(*lists.values(), strict=True)]
    if isinstance(fanouts, int | str) or fanouts is None:
        return fanouts
    return [
        {_key(kind): number for kind, number in hop.items()} if isinstance(hop, Mapping) else hop for hop in fanouts
    ]


def _key(kind: Any) -> Any:
    return edge_key(kind) if isinstance(kind, tuple) and len(kind) == 3 else kind
