"""What things cost on this machine, measured: batches drawn and gathered, steps computed, epochs of both together.

`sampling` and `training` give the rows that `penstock bench` and the benchmarks show.
"""

from penstock.cost.sampling_rate import SamplingRow, measure_sampling
from penstock.cost.step_time import TrainingRow, measure_epoch, measure_steps

__all__ = ["SamplingRow", "TrainingRow", "measure_epoch", "measure_sampling", "measure_steps"]
