"""From seeds to batches that a model can use: stages that run in parallel and keep the order.

`stages` is the mechanism for any stages, measures them, and has the five of training; `schedule` is the sequence of
batches. `batch_rows` and `device` read the features of batches and move them to the device that computes.
`grouped_batches` has batches that are drawn in groups by all processors, or once for all epochs.
"""
