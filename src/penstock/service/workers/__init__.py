"""The processes that train.

`warm` is a program that has imported everything once and forks processes; `pool` is the service's side of it. A fork
does one task (`tasks`) or trains several jobs in threads (`shared_jobs`, and `shared_pool` for the service); `reports`
is what it tells the service, `device_grant` what it may take of a GPU. `process` knows other processes by what the
system says of them, `cuda_mps` lets several processes share a GPU.
"""
