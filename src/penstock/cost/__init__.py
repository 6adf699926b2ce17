"""What things cost on this machine, measured: batches drawn and gathered, steps computed, epochs of both together.

`sampling_rate` and `step_time` give the rows that `penstock bench` and the benchmarks show; `profile` is the document
of what was measured of a job, and `scaled_profile` predicts it at other numbers of parts and workers.
"""

from penstock.cost.sampling_rate import SamplingRow, measure_sampling
from penstock.cost.step_time import TrainingRow, measure_epoch, measure_steps

__all__ = ["SamplingRow", "TrainingRow", "measure_epoch", "measure_sampling", "measure_steps"]
