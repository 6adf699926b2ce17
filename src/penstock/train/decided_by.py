"""What decided a field that a job leaves open: run.json and the result say it (`decided_by`)."""

OPERATOR_PROFILE = "operator profile"
"""Predictions from this machine's measured operators (`penstock profile --operators`)."""
RULE = "rule"
"""A rule that asks for no measurement."""
TIMED = "timed"
"""Training steps under each finalist, before the run began (`train.finalists`)."""
