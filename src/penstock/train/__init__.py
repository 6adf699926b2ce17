"""Training: the loop, evaluation, checkpoints, and what they measure.

`job` is what a run is told, `session` a job made ready, `loop` the training itself, `running` a run from start to end
and `use` what a trained model gives. `tasks` say what is learned; `data` and `labels` where it comes from; `inputs` and
`samplers` what a batch is made of; `inference` is exact. `run_folder`, `events`, `checkpoints` and `state_file` write.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """`ps.train(...)` is the sentence users want to write, and this package has that name: calling it trains."""

    def __call__(self, *given: Any, **fields: Any) -> Any:
        return import_module("penstock.api").train(*given, **fields)


sys.modules[__name__].__class__ = _CallableModule
