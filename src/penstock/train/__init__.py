"""Training: the loop, evaluation, checkpoints, and what they measure.

`job` has the settings of a run, `session` is a job made ready, `loop` the training itself, `run` a run from start to
end and `use` what a trained model gives. `tasks/` say what is learned; `data` and `labels` where it comes from;
`inputs` and `batch_source` what a batch is made of. `execution_modes` chooses how steps are done, by `execution/` on
the host or `device/` on a GPU; `layerwise/` is exact inference. `run_folder`, `events`, `checkpoints` and `state_file`
write.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallableModule(ModuleType):
    """`ps.train(...)` is the sentence users want to write, and this package has that name: calling it trains."""

    def __call__(self, *given: Any, **fields: Any) -> Any:
        return import_module("penstock.api").train(*given, **fields)

    def __reduce__(self) -> tuple[Any, ...]:
        """A module is sent by its name: functions that call it travel to other processes, as Ray's and Dask's do."""
        return import_module, (self.__name__,)

    @property
    def __signature__(self) -> Any:
        """That of the function: every field of a job by its name."""
        return import_module("penstock.api").train.__signature__


sys.modules[__name__].__class__ = _CallableModule
