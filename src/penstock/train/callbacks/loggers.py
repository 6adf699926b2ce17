"""Callbacks that log a run elsewhere: TensorBoard, MLflow, Weights & Biases."""

import os
from importlib import import_module
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.train.callbacks.calls import EpochResult
from penstock.train.job import Job


def _imported(module: str, name: str, extra: str) -> Any:
    """A module that comes with one of Penstock's extras; an error that says how to install it."""
    try:
        return import_module(module)
    except ImportError:
        raise PenstockError(
            f"{name} is not installed: `pip install penstock[{extra}]`.", code="not-installed"
        ) from None


# Curves for TensorBoard.


class TensorBoard:
    """Writes every epoch's numbers for TensorBoard, into the run's folder `tensorboard` unless `folder` is given."""

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._writer_of = _imported("torch.utils.tensorboard", "TensorBoard", "tensorboard").SummaryWriter
        self._folder = folder
        self._writer: Any = None

    def on_start(self, run: Path, job: Job) -> None:
        """Open the log and write the job as text."""
        self._writer = self._writer_of(os.fspath(self._folder or run / "tensorboard"))
        fields = job.model_dump(mode="json")
        self._writer.add_text("job", "\n".join(f"    {name}: {value}" for name, value in fields.items()))

    def __call__(self, result: EpochResult) -> None:
        """Add a point to every curve."""
        for name, value in result.numbers.items():
            self._writer.add_scalar(name, value, result.epoch)
        self._writer.flush()

    def on_end(self, result: dict[str, Any] | None) -> None:
        """Write the best model's metrics and close the log."""
        if result:
            for name, value in result.get("test", {}).items():
                self._writer.add_scalar(f"test_{name}", value, result["best_epoch"])
        self._writer.close()


# A run in MLflow.


class MLflow:
    """Keeps a run in MLflow: the job as parameters, every epoch's numbers, and the best model's test metrics.

    Where it is kept is MLflow's own setting (MLFLOW_TRACKING_URI), unless `tracking_uri` is given.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "penstock") -> None:
        self._mlflow = _imported("mlflow", "MLflow", "mlflow")
        self._tracking_uri, self._experiment = tracking_uri, experiment

    def on_start(self, run: Path, job: Job) -> None:
        """Begin an MLflow run with the run folder's name."""
        if self._tracking_uri is not None:
            self._mlflow.set_tracking_uri(self._tracking_uri)
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=run.name)
        self._mlflow.log_params({name: str(value) for name, value in job.model_dump(mode="json").items()})

    def __call__(self, result: EpochResult) -> None:
        """Log every number of the epoch."""
        self._log(result.numbers, result.epoch)

    def on_end(self, result: dict[str, Any] | None) -> None:
        """Log test metrics and whether the run succeeded."""
        if result:
            self._log({f"test_{name}": value for name, value in result.get("test", {}).items()}, result["best_epoch"])
        self._mlflow.end_run("FINISHED" if result is not None else "FAILED")

    def _log(self, numbers: dict[str, float], step: int) -> None:
        # MLflow forbids @ in names of metrics.
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in numbers.items()}, step=step)


# A run in Weights & Biases.


class WandB:
    """Keeps a run in Weights & Biases: offline, in the run's folder, unless WANDB_MODE or `mode` says otherwise."""

    def __init__(self, project: str = "penstock", mode: str | None = None) -> None:
        self._wandb = _imported("wandb", "Weights & Biases", "wandb")
        self._project, self._mode = project, mode or os.environ.get("WANDB_MODE", "offline")
        self._run: Any = None

    def on_start(self, run: Path, job: Job) -> None:
        """Begin a W&B run with the run folder's name, and the job as its configuration."""
        self._run = self._wandb.init(
            project=self._project,
            name=run.name,
            dir=str(run),
            mode=self._mode,
            config=job.model_dump(mode="json"),
            reinit="finish_previous",
        )

    def __call__(self, result: EpochResult) -> None:
        """Log every number of the epoch."""
        self._run.log(result.numbers, step=result.epoch)

    def on_end(self, result: dict[str, Any] | None) -> None:
        """Write the best model's metrics to the summary and close the run."""
        if result:
            self._run.summary.update({f"test_{name}": value for name, value in result.get("test", {}).items()})
        self._run.finish(exit_code=0 if result is not None else 1)
