"""Predicts the memory of training before it starts: a step is traced on meta tensors, which have shapes and no values.

`fake_session` gives a session meta weights for as long as it is traced, makes the batches, and traces the validation.
`penstock.trace` records what they allocate.
"""
