"""The processes that train.

`warm` is a program that has imported everything once and forks processes; `pool` is the service's side of it, and
identifies its processes. A fork does one task (`tasks`) or trains several jobs in threads (`shared_jobs`); `tasks` also
has its reports to the service, its limit of GPU memory and the forecast of a job's memory. `cold` does one task where
there is no warm program.
"""
