"""One step of training a large language model as a workload: dense or with experts, in stages, over data ranks.

`model` is what is trained, how it is parallelised and in what order a stage works, `job` all inputs of a step and its
costs. `step` puts them together with `collectives` (all-to-alls of experts, rings over data ranks) and `fabric` (the
network); `document` is a job in a file. For which GPUs are simulated on behalf of all, see `model`.
"""
