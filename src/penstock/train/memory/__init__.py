"""What a job will take of memory, on the device and on the host, before it starts.

`forecast` predicts a job's peak from a trace of its own code (`train/trace`), `document` says it in words and JSON, and
`remedies` what would make a job fit a device that is too small for it.
"""
