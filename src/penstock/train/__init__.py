"""Training: the loop, evaluation, checkpoints, and what they measure.

`job` has the settings of a run, `session` is a job made ready, `loop` the training itself, `run` a run from start to
end and `use` what a trained model gives. `tasks/` say what is learned; `data` and `labels` where it comes from;
`inputs` and `batch_source` what a batch is made of. `execution_modes` chooses how steps are done, by `execution/` on
the host or `device/` on a GPU; `layerwise/` is exact inference. `run_folder`, `events` and `checkpoints`
write.
"""

from penstock.registry import make_callable

make_callable(__name__)
