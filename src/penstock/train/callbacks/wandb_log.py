"""A run in Weights & Biases."""

import os
from pathlib import Path
from typing import Any

from penstock.errors import PenstockError
from penstock.train.callbacks.calls import EpochResult
from penstock.train.job import Job


class WandB:
    """Keeps a run in Weights & Biases: offline, in the run's folder, unless WANDB_MODE or `mode` says otherwise."""

    def __init__(self, project: str = "penstock", mode: str | None = None) -> None:
        try:
            import wandb
        except ImportError:
            raise PenstockError(
                "Weights & Biases is not installed: `pip install penstock[wandb]`.", code="not-installed"
            ) from None
        self._wandb: Any = wandb
        self._project, self._mode = project, mode or os.environ.get("WANDB_MODE", "offline")
        self._run: Any = None

    def on_start(self, run: Path, job: Job) -> None:
        """Begin a run of the same name, with the job as its configuration."""
        self._run = self._wandb.init(
            project=self._project,
            name=run.name,
            dir=str(run),
            mode=self._mode,
            config=job.model_dump(mode="json"),
            reinit="finish_previous",
        )

    def __call__(self, result: EpochResult) -> None:
        """The epoch's numbers."""
        self._run.log(result.numbers, step=result.epoch)

    def on_end(self, result: dict[str, Any] | None) -> None:
        """The best model's metrics in the summary; then the run is closed."""
        if result:
            self._run.summary.update({f"test_{name}": value for name, value in result.get("test", {}).items()})
        self._run.finish(exit_code=0 if result is not None else 1)
