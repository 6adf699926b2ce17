"""What things cost on this machine, measured: batches drawn and gathered, steps computed, epochs of both together.

`throughput` gives the rows that `penstock bench` and the benchmarks show; `profile` is the document of what was
measured of a job, and `scaled_profile` predicts it at other numbers of parts and workers. `model` predicts seconds of
operators.
"""

from penstock.cost.throughput import SamplingRow, TrainingRow, measure_epoch, measure_sampling, measure_steps

__all__ = ["SamplingRow", "TrainingRow", "measure_epoch", "measure_sampling", "measure_steps"]
