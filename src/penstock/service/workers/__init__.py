"""The processes that train.

`warm` is a program that has imported everything once and forks processes; `pool` is the service's side of it, and knows
its processes by what the system says of them. A fork does one task (`tasks`) or trains several jobs in threads
(`shared_jobs`); `tasks` also has what it reports to the service and what it may take of a GPU. `memory_need` forecasts
the memory of a job. `cold` does one task where no warm program waits.
"""
