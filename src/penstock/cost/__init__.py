"""What things cost on this machine, measured: batches drawn and gathered, steps computed, epochs of both together.

`throughput` gives the rows that `penstock bench` and the benchmarks show; `profile` is the document of a job's
measurements and of the machine that the rates depend on, and `scaled_profile` predicts it at other numbers of parts and
workers. `operator_profile` measures the operators of `operators/`, `fit` fits rates to their seconds, `model` predicts
seconds of operators and of a training step from them.
"""
