"""Predicts the memory that a job takes, on the device and on the host, before it starts.

`forecast` predicts a job's peak and shows it as text and JSON; `remedies` finds changes that make the job fit a device
that is too small for it. `device_forecast` and `host_forecast` predict the two sides from a trace of the job's own code
(`train.trace`), or from two small steps where it cannot be traced; `process_memory` measures what a process takes by
itself.
"""
