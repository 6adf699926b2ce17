"""A run in MLflow."""

from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.train.callbacks.calls import EpochResult
from penstock.train.job import Job


class MLflow:
    """Keeps a run in MLflow: the job as parameters, every epoch's numbers, and the best model's test metrics.

    Where it is kept is MLflow's own setting (MLFLOW_TRACKING_URI), unless `tracking_uri` is given.
    """

    def __init__(self, tracking_uri: str | None = None, experiment: str = "penstock") -> None:
        try:
            import mlflow
        except ImportError:
            raise PenstockError(
                "MLflow is not installed: `pip install penstock[mlflow]`.", code="not-installed"
            ) from None
        self._mlflow: Any = mlflow
        self._tracking_uri, self._experiment = tracking_uri, experiment

    def on_start(self, run: Path, job: Job) -> None:
        """Begin a run of the same name."""
        if self._tracking_uri is not None:
            self._mlflow.set_tracking_uri(self._tracking_uri)
        self._mlflow.set_experiment(self._experiment)
        self._mlflow.start_run(run_name=run.name)
        self._mlflow.log_params({name: str(value) for name, value in job.model_dump(mode="json").items()})

    def __call__(self, result: EpochResult) -> None:
        """The epoch's numbers."""
        self._log(result.numbers, result.epoch)

    def on_end(self, result: dict[str, Any] | None) -> None:
        """Test metrics, and whether the run succeeded."""
        if result:
            self._log({f"test_{name}": value for name, value in result.get("test", {}).items()}, result["best_epoch"])
        self._mlflow.end_run("FINISHED" if result is not None else "FAILED")

    def _log(self, numbers: dict[str, float], step: int) -> None:
        # MLflow's names have no @.
        self._mlflow.log_metrics({name.replace("@", "_at_"): value for name, value in numbers.items()}, step=step)
