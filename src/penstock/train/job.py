"""The job: all settings of a run in one flat document. Each part is defined beside the code that uses it."""

import os
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from penstock.errors import PenstockError
from penstock.graph.documents import AutoCount, StrictDocument, mapping_of_flag, read_yaml, validated, yaml_text
from penstock.graph.files import write_whole
from penstock.nn.layer_table import WITHOUT_LAYERS, ModelFields, ModelOptions
from penstock.pipeline.options import PipelineFields, PipelineOptions
from penstock.sampling.entry import ExplainedSamplingOptions
from penstock.sampling.sampler_table import SEEDS_ONLY, SamplerOptions
from penstock.store.initial_rows import checked_init
from penstock.train.internals import BY_MACHINE, REMOVED, Internals, up_to_date
from penstock.train.job_options import (
    BatchOptions,
    DataOptions,
    DeviceOptions,
    FunctionOptions,
    LinkOptions,
    TripleOptions,
    WholeOptions,
)

# What PyG and others call the fields of a job, for those who write the names that they know.

OTHER_NAMES: dict[str, str] = {
    "num_neighbors": "fanouts",
    "num_workers": "sample_threads",
    "neg_sampling_ratio": "negatives_per_edge",
    "neg_sampling": "negatives",
    "time_attr": "time",
    "edge_label_time": "seed_time",
    "weight_attr": "weight",
    "hidden_channels": "hidden",
    "hidden_dim": "hidden",
    "num_layers": "layers",
    "num_heads": "heads",
    "num_bases": "bases",
    "num_blocks": "blocks",
    "aggr": "aggregate",
    "act": "activation",
    "jk": "jump",
    "edge_dim": "edge_features",
    "num_epochs": "epochs",
    "max_epochs": "epochs",
    "learning_rate": "lr",
    "optimizer": "optimiser",
    "scheduler": "schedule",
    "early_stopping": "patience",
}
"""A name that no field has, and the field that is meant."""


Options = Annotated[dict[str, Any], BeforeValidator(mapping_of_flag)]


class TrainOptions(StrictDocument):
    """Fields of the training loop."""

    module: str | None = Field(
        None,
        description="a model of your own instead of a zoo one: FILE.py:NAME or PACKAGE.MODULE:NAME, called with inputs"
        " and outputs (widths)",
    )
    epochs: AutoCount = Field(
        0, description="passes over the training split; auto: 10, and more on small graphs until there are 150 steps"
    )
    optimiser: str = Field("Adam", description="a class of torch.optim")
    lr: float = Field(0.003, gt=0, description="learning rate")
    weight_decay: float = Field(0.0, ge=0, description="L2 penalty")
    optimiser_options: Options = Field({}, description="further arguments of the optimiser")
    schedule: str | None = Field(None, description="a class of torch.optim.lr_scheduler, stepped every epoch")
    schedule_options: Options = Field({}, description="arguments of the schedule")
    embedding_optimiser: Literal["auto", "adam", "dense-adam", "adagrad"] = Field(
        "auto",
        description="for learnable vertex embeddings: adam moves the rows of a batch (torch's SparseAdam), dense-adam"
        " all rows in every step (torch's Adam); auto: dense-adam for models without layers, up to 256 vertices for"
        " each seed of a batch, else adam",
    )
    embedding_lr: float = Field(0.01, gt=0, description="learning rate of vertex embeddings")
    embedding_init: Annotated[str, AfterValidator(checked_init)] = Field(
        "auto",
        description="what vertex embeddings and vectors of relations begin with (docs/knowledge-graphs.md): auto, as"
        " the scorer's authors do; xavier; normal:DEVIATION; uniform:BOUND; identity, relations around one",
    )
    schedule_of: Literal["weights", "all"] = Field(
        "weights",
        description="the rates that `schedule` changes: that of the model's weights, or by the same factor that of"
        " vertex embeddings as well (not on clusters)",
    )
    embedding_decay: float = Field(
        0.0, ge=0, description="L2 penalty of vertex embeddings; weight_decay does not apply to them (docs/training.md)"
    )
    clip: float = Field(0.0, ge=0, description="largest norm of all gradients together; 0: no limit")
    metric: str = Field("auto", description="the metric that chooses the best model")
    patience: int = Field(0, ge=0, description="validations without improvement before stopping; 0: never stop early")
    evaluate_every: int = Field(1, ge=-1, description="epochs between validations; 0: only at the end; -1: never")
    checkpoint_steps: int = Field(0, ge=0, description="steps between checkpoints; 0: only by time")
    checkpoint_minutes: float = Field(
        5.0,
        ge=0,
        description="minutes between checkpoints; the first come after 10, 20, 40 ... seconds; 0: only by steps",
    )
    seed: int = Field(0, ge=0, lt=1 << 63, description="the same seed gives the same weights")
    threads: int = Field(
        0, ge=0, le=1 << 16, description="threads that compute; 0: all cores; another number rounds sums differently"
    )
    run: str | None = Field(None, description="the run folder to write; runs/<graph>-<model>-<n> by default")
    from_run: str | None = Field(
        None,
        description="an earlier run, with whose best weights and vertex embeddings this one begins"
        " (docs/training.md#runs-that-begin-where-another-ended)",
    )


class JobFields(
    DataOptions,
    SamplerOptions,
    ExplainedSamplingOptions,
    WholeOptions,
    ModelFields,
    LinkOptions,
    TripleOptions,
    TrainOptions,
    FunctionOptions,
    BatchOptions,
    DeviceOptions,
    PipelineFields,
):
    """All fields that a user may set of a training job."""

    layers: int = Field(0, ge=0, description="layers of the model; 0: one for each fan-out")


class Job(JobFields, Internals, ModelOptions, PipelineOptions):
    """A job as it is carried out: its fields, and what is decided without asking for it."""

    @model_validator(mode="after")
    def _models_without_layers(self) -> "Job":
        """Their batches are the seeds alone: a sampler that draws neighbours is refused."""
        if self.has_layers:
            return self
        if self.layers:
            raise ValueError(f"model {self.model} has no layers: leave out layers")
        if self.sampler not in (SEEDS_ONLY, type(self).model_fields["sampler"].default):
            raise ValueError(f"model {self.model} reads no neighbours, and sampler is {self.sampler}: leave it out")
        self.sampler, self.fanouts = SEEDS_ONLY, []
        return self

    @property
    def draw_seed(self) -> int:
        """The seed as `key_of` takes it, which knows the version of the job's draws."""
        # Kernels are imported by those who run a job, not by those who read one.
        from penstock.graph.hashing import seed_of

        return seed_of(self.seed, self.draws)

    @property
    def weight_seed(self) -> int:
        """What torch's generators are seeded with for the initial weights."""
        from penstock.graph.hashing import seed_for

        return self.seed if self.draws == 1 else seed_for(self.seed, "weights")

    @property
    def has_own_module(self) -> bool:
        """Whether the model is a module of the user's."""
        return self.module is not None

    @property
    def names_edges(self) -> bool:
        """Whether batches name their edges, whatever a model reads of them."""
        return False

    @property
    def has_disjoint_seeds(self) -> bool:
        """Whether every seed has a neighbourhood of its own, also where no time asks for it."""
        return False

    @property
    def excludes_examples(self) -> bool:
        """Whether the edges that a batch is asked for are left out of its neighbourhoods."""
        return True

    @property
    def has_layers(self) -> bool:
        """Whether the model computes anything of its inputs."""
        return self.module is not None or self.model not in WITHOUT_LAYERS

    @property
    def own_code(self) -> dict[str, list[str]]:
        """By field, the code of the user's that a run imports."""
        named = {
            "module": [] if self.module is None else [self.module],
            "loss": [self.loss] if self.loss is not None and ":" in self.loss else [],
            "metrics": self.metrics,
            "callbacks": [name for name in self.callbacks if ":" in name],
        }
        return {field: names for field, names in named.items() if names}

    @property
    def model_name(self) -> str:
        """What the model is called, in the run's name too."""
        return self.model if self.module is None else self.module.rpartition(":")[2]


PARTS: dict[str, type[StrictDocument]] = {
    "Data": DataOptions,
    "Sampling": SamplerOptions,
    "Explanations": ExplainedSamplingOptions,
    "Whole graph": WholeOptions,
    "Model": ModelFields,
    "Links": LinkOptions,
    "Knowledge graphs": TripleOptions,
    "Training": TrainOptions,
    "Functions": FunctionOptions,
    "Batches": BatchOptions,
    "Device": DeviceOptions,
    "Pipeline": PipelineFields,
}
"""The job's fields by subject, in the order they are shown."""


JOB, DECIDED = "job.yaml", "decided.yaml"
"""Of a run folder: the fields of its job, and what was decided beside them."""
_RUN = "run.json"
"""What makes a folder a run folder."""


def make_job(fields: Mapping[str, Any], where: str = "the job", internals: Mapping[str, Any] | None = None) -> Job:
    """A checked job of fields and, where no user sets them, `internals`; errors name `where` it stands."""
    refuse_unknown(fields, where)
    unknown = set(internals or {}) - Internals.model_fields.keys()
    assert not unknown, f"{unknown} are no internals of a job"
    return _checked({**(internals or {}), **fields}, where)


def job_of(values: Mapping[str, Any], where: str = "the job") -> Job:
    """A job of fields and internals that are written together, as benchmarks and tests compare them."""
    own = {name: value for name, value in values.items() if name in Internals.model_fields}
    return make_job({name: value for name, value in values.items() if name not in own}, where, own)


def stored_job(document: Mapping[str, Any], where: str, changes: Mapping[str, Any] | None = None) -> Job:
    """The job of a document that Penstock wrote, this release or an earlier one, with a user's changes of its fields.

    Unlike a user's document it may have internals.
    """
    refuse_unknown(changes or {}, where)
    found = up_to_date(document)
    refuse_unknown({name: found[name] for name in found if name not in Internals.model_fields}, where)
    return _checked({**found, **(changes or {})}, where)


def changed_job(
    job: Job | None,
    changes: Mapping[str, Any],
    where: str = "the job",
    internals: Mapping[str, Any] | None = None,
) -> Job:
    """A job with other values of some fields, checked; what was decided for it stays, but for `internals`."""
    if job is None:
        return make_job(changes, where, internals)
    return stored_job({**job.model_dump(), **(internals or {})}, where, changes)


def refuse_unknown(fields: Iterable[str], where: str) -> None:
    """Refuse a name that is no field of a job, with what to write instead."""
    for name in fields:
        if name in REMOVED:
            raise PenstockError(
                f"{where} has {name!r}, which is no field any more: {REMOVED[name]}.", code="unknown-name"
            )
        if name not in JobFields.model_fields:
            known = OTHER_NAMES.get(str(name))
            close = [known] if known else get_close_matches(str(name), JobFields.model_fields, 1, 0.5)
            hint = f"did you mean {close[0]!r}?" if close else "docs/job.md lists them all."
            raise PenstockError(f"{where} has an unknown field {name!r}: {hint}", code="unknown-name")


def _checked(fields: Mapping[str, Any], where: str) -> Job:
    plain = {name: os.fsdecode(each) if isinstance(each, os.PathLike) else each for name, each in fields.items()}
    return validated(Job, plain, where)


def job_defaults() -> dict[str, Any]:
    """The default of every field, for showing what a run changed."""
    return job_fields(Job.model_validate({}))


def job_fields(job: Job) -> dict[str, Any]:
    """The fields of a job that its user may set, as they are written down."""
    return job.model_dump(mode="json", include=set(JobFields.model_fields))


def read_job(path: Path, changes: Mapping[str, Any] | None = None) -> Job:
    """The job in a YAML file, with some fields replaced.

    The file of a run folder brings along what that run decided, so that the same job does the same again; a changed one
    decides again.
    """
    changes, fields = changes or {}, read_job_fields(path)
    if not _is_of_run(path):
        return make_job({**fields, **changes}, str(path))
    found = {**fields, **read_decided(path.parent)}
    again = BY_MACHINE if changes.keys() - {"run"} else frozenset()
    return stored_job({name: found[name] for name in found if name not in again}, str(path), changes)


def read_job_fields(path: Path) -> dict[str, Any]:
    """The fields that a job file has, as they are written there."""
    if path.is_dir() or path.suffix in (".tsv", ".csv", ".txt", ".npz"):
        raise PenstockError(
            f"{path} is not a job file (YAML): if it is the graph, name it with --graph {path}.", code="wrong-file"
        )
    return read_yaml(path, "the job to run")


def read_decided(folder: Path) -> dict[str, Any]:
    """What was decided for a run; runs of earlier releases have it in their job."""
    return read_yaml(folder / DECIDED, "what was decided for the run") if (folder / DECIDED).exists() else {}


def write_job(job: Job, folder: Path) -> None:
    """Every field and all that was decided, so that a later release with other defaults runs the same."""
    write_whole(folder / JOB, yaml_text(job_fields(job)))
    write_whole(folder / DECIDED, yaml_text(job.model_dump(mode="json", include=set(Internals.model_fields))))


def _is_of_run(path: Path) -> bool:
    return path.name == JOB and (path.parent / _RUN).exists()
