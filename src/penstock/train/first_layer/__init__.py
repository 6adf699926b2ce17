"""The part of the first layer that the host computes while it reads a batch's features.

`ways` is the list of ways; each declares which jobs it is for and how batches then read their features. `aggregated` is
for batches of the pipeline, `slots` and `aggregated_slots` fill the slots of captured steps.
"""
