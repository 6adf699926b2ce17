"""The processes that train.

`warm` is a program that has imported everything once and forks a process for each task; `pool` is the service's side of
it. `tasks` is what such a process does, `reports` what it tells the service. `process` knows other processes by what
the system says of them, `cuda_mps` lets several processes share a GPU.
"""
