"""What Python users call: `ps.train` and the `Run` that it returns, `ps.explain` and `ps.memory`."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from penstock.errors import PenstockError
from penstock.explain.explanation import Explanation
from penstock.graph.convert import load
from penstock.graph.graph import Graph
from penstock.nn import ModelOptions
from penstock.progress import SILENT, Progress
from penstock.report import write_explanation_page, write_report, write_report_or_note
from penstock.train.build import make_session
from penstock.train.data import IN_MEMORY
from penstock.train.explain_run import ExplainOptions, explain_session
from penstock.train.job import Job, job_defaults, make_job
from penstock.train.loading.batch_loader import BatchLoader
from penstock.train.loading.options import make_loader_job
from penstock.train.loading.seed_source import Seeds
from penstock.train.memory.forecast import MemoryForecast, forecast
from penstock.train.memory.remedies import fitting_forecast
from penstock.train.run import resume_run, start_run
from penstock.train.run_context import generators_kept
from penstock.train.run_folder import CLUSTER, RunFolder
from penstock.train.session import Session
from penstock.train.use import open_session

_RESUMED = {"epochs", "module"}
"""Fields that may be given with `resume`: more epochs, and the run's own module by its name."""


class Run:
    """A run that has ended, or a run folder looked at later."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """The run in a folder."""
        return cls(RunFolder.open(Path(path)))

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self._folder.path

    @property
    def state(self) -> str:
        """finished, stopped-early, interrupted, failed or running."""
        return str(self._folder.facts["state"])

    @property
    def message(self) -> str:
        """Why it is not finished, where it is not."""
        return str(self._folder.facts.get("message", ""))

    @property
    def result(self) -> dict[str, Any]:
        """What `penstock train --json` prints."""
        result: dict[str, Any] = self._folder.facts.get("result", {})
        return result

    @property
    def val(self) -> dict[str, float]:
        """The best model's validation metrics."""
        return dict(self.result.get("val", {}))

    @property
    def test(self) -> dict[str, float]:
        """The best model's test metrics."""
        return dict(self.result.get("test", {}))

    @property
    def page(self) -> Path | None:
        """Its report.html, where it has one."""
        page = self.path / "report.html"
        return page if page.exists() else None

    def report(self) -> Path:
        """Write report.html again and say where it is."""
        return write_report(self.path, job_defaults())

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}, {self.state}, test={self.test})"


def train(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    resume: str | Path | None = None,
    cluster: str | Path | None = None,
    plan: str | Path | None = None,
    force: bool = False,
    progress: Progress = SILENT,
    job: Job | None = None,
    trust_module: bool = False,
    **fields: Any,
) -> Run:
    """Train a model on a graph; `fields` are those of a job (docs/job.md).

    `graph` is anything `ps.load` recognises, `model` a name, a model of `ps.nn`, or any module with
    `forward(x, edge_index)` or `forward(x_dict, edge_index_dict)`. `resume` names a run folder to go on from.
    `cluster` names a cluster file (docs/cluster.md), or says 2x2 for two machines of two workers, all on this host; a
    graph that is only in memory is cut into the run folder then.
    `plan` names a plan (docs/planning.md), which holds its job and its cluster; `fields` may change what it does not
    depend on.
    A run folder or a plan may name code, its `module`: it is run with `trust_module`, or if `module` names it again.
    """
    module = model if isinstance(model, torch.nn.Module) else None
    if resume is not None and (Path(resume) / CLUSTER).exists():
        from penstock.cluster.run import resume_cluster_run

        if set(fields) - _RESUMED or job is not None or cluster is not None or graph is not None:
            raise PenstockError(
                "A resumed run keeps its job, its graph and its cluster: only epochs may be changed.",
                code="conflicting-options",
            )
        said = fields.get("epochs"), progress, trust_module, fields.get("module")
        return _reported(resume_cluster_run(Path(resume), *said), progress)
    if resume is not None:
        if set(fields) - _RESUMED or job is not None:
            raise PenstockError("A resumed run keeps its job: only epochs may be changed.", code="conflicting-options")
        opened = None if graph is None else _opened(graph)
        said = fields.get("epochs"), progress, trust_module, fields.get("module")
        return _reported(resume_run(Path(resume), opened, module, *said), progress)
    if plan is not None:
        return _planned(Path(plan), [graph, model, cluster, job], fields, force, progress, trust_module)
    if isinstance(model, str):
        fields["model"] = model
    if isinstance(graph, (str, Path)):
        fields["graph"] = str(graph)
    opened = None if graph is None or isinstance(graph, (str, Path)) else _opened(graph)
    if opened is not None:
        fields["graph"] = f"{opened.name}{IN_MEMORY}" if opened.path is None else str(opened.path)
    chosen = make_job({**(job.model_dump() if job else {}), **fields})
    if cluster is not None:
        # Whoever trains on one machine does not wait for the wire to be imported.
        from penstock.cluster.run import start_cluster_run

        if module is not None:
            raise PenstockError(
                "A cluster run cannot use a module object, because processes exchange no pickles: put the code that"
                ' builds it in a file and pass module="FILE.py:NAME", or name a model of ps.nn.',
                code="unsupported-combination",
            )
        return _reported(start_cluster_run(chosen, str(cluster), force, progress, opened), progress)
    return _reported(start_run(chosen, opened, module, force, progress), progress)


def loader(
    graph: Any,
    split: Seeds = "train",
    *,
    fanouts: Sequence[int | dict[str, int]] = (15, 10),
    batch_size: int = 1024,
    shuffle: bool | None = None,
    device: str = "auto",
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
    given = {"fanouts": list(fanouts), "batch_size": batch_size, "device": device, "seed": seed, **fields}
    job = make_loader_job(given, splits)
    return BatchLoader(_opened(graph), job, split, shuffle, rank, world, reserve)


@dataclass(frozen=True)
class VertexExplanation(Explanation):
    """What a prediction rests on: `edges` and `columns`, largest masks first, and a page that shows them."""

    def page(self, path: str | Path) -> Path:
        """Write an HTML page with the neighbourhood drawn, and say where it is."""
        write_explanation_page(self, Path(path))
        return Path(path)


def explain(
    run: "Run | str | Path | torch.nn.Module",
    graph: Any = None,
    vertex: int | str | None = None,
    *,
    node_type: str | None = None,
    hops: int | None = None,
    steps: int = ExplainOptions().steps,
    lr: float = ExplainOptions().lr,
    seed: int = 0,
    max_edges: int = ExplainOptions().max_edges,
    module: torch.nn.Module | None = None,
    trust_module: bool = False,
    **fields: Any,
) -> VertexExplanation:
    """Which edges and columns a prediction for a vertex rests on.

    `run` is a finished run or its folder, whose best weights are used, or a trained model; `fields` are then those of
    the job that it was trained with, such as its `fanouts` or `layers`. `graph` is anything `ps.load` recognises; None
    is the run's own. `vertex` is the id in your tables. `hops` restricts the edges that may be named.
    """
    if vertex is None:
        raise PenstockError(
            "There is no vertex to explain: give `vertex`, an id of your tables.", code="option-missing"
        )
    opened = None if graph is None else _opened(graph)
    options = ExplainOptions(hops, steps, lr, 0.0, seed, max_edges)
    if isinstance(run, torch.nn.Module):
        session = _session_of_model(run, opened, fields)
    elif fields:
        raise PenstockError(
            f"A run keeps its job: leave out {', '.join(fields)}, or give a model instead of a run.",
            code="conflicting-options",
        )
    else:
        session = open_session(run.path if isinstance(run, Run) else Path(run), opened, module, SILENT, trust_module)
    return VertexExplanation(**vars(explain_session(session, vertex, node_type, options)))


def _session_of_model(model: torch.nn.Module, graph: Graph | None, fields: dict[str, Any]) -> Session:
    if graph is None:
        raise PenstockError("A model is explained on a graph: give the graph too.", code="option-missing")
    options = getattr(model, "options", None)
    known = dict(options) if isinstance(options, ModelOptions) else {}
    if "layers" in known and not {"fanouts", "layers"} & set(fields):
        known["fanouts"] = [-1] * known["layers"]
    # Nothing is trained: the model is used as it is, on the processor.
    job = make_job({"graph": f"{graph.name}{IN_MEMORY}", "device": "cpu", **known, **fields})
    with generators_kept():
        return make_session(job, graph, model)


def memory(
    graph: Any = None,
    model: torch.nn.Module | str | None = None,
    *,
    device_memory: int | None = None,
    job: Job | None = None,
    **fields: Any,
) -> MemoryForecast:
    """What `train` with the same arguments would take of memory, on the device and on the host; nothing is trained.

    `device="cuda"` needs no GPU here. `device_memory` is the bytes that the GPU has; where it is not given, a GPU of
    this machine is asked, and without one everything is taken to fit. A job that is too large is refused, with changes
    that would make it fit.
    """
    module = model if isinstance(model, torch.nn.Module) else None
    if isinstance(model, str):
        fields["model"] = model
    if isinstance(graph, (str, Path)):
        fields["graph"] = str(graph)
    opened = None if graph is None or isinstance(graph, (str, Path)) else _opened(graph)
    chosen = make_job({**(job.model_dump() if job else {}), **fields})
    return memory_of_job(chosen, opened, module, device_memory)[0]


def memory_of_job(
    job: Job, graph: Graph | None = None, module: torch.nn.Module | None = None, device_memory: int | None = None
) -> tuple[MemoryForecast, int | None]:
    """The forecast of a job, and the memory of the GPU that it was held against, where that is known."""
    if device_memory is None and job.device != "cpu" and torch.cuda.is_available():
        device_memory = torch.cuda.mem_get_info()[1]
    if device_memory is None:
        return forecast(job, graph, module=module), None
    return fitting_forecast(job, graph, device_memory=device_memory, module=module), device_memory


def _planned(
    plan: Path, others: list[Any], fields: dict[str, Any], force: bool, progress: Progress, trust_module: bool
) -> Run:
    from penstock.cluster.run import start_planned_run

    if any(each is not None for each in others):
        raise PenstockError(
            "A plan holds its graph, its model and its cluster: give the plan alone.", code="conflicting-options"
        )
    return _reported(start_planned_run(plan, fields, force, progress, trust_module), progress)


def _opened(graph: Any) -> Graph:
    return graph if isinstance(graph, Graph) else load(graph)


def _reported(folder: RunFolder, progress: Progress) -> Run:
    """The run with its page, or with a note why there is none: what was trained stands without it."""
    run = Run(folder)
    write_report_or_note(run.path, run.state, progress)
    return run
