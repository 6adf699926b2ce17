"""Choices that a job leaves open, decided by training some batches under each finalist before the run begins.

`finalist` says what an open field of a job declares, `open_fields` is the list of them, `predicted_steps` predicts what
a finalist takes, `trial` times training steps, and `settlement` decides which fields are timed, for how long, and when
a finalist is taken.
"""
