"""Draws that know what is remote and what the model needs: fewer remote neighbours, chosen by explanations.

`locality_draw` holds the kernels and their mathematics, `part_draw` draws from one part, for others too,
`explained_lists` from all parts, and `sampler` is the sampler; `unscored_lists` draws from a whole graph before a run,
and `budget` says how often the model may be explained. What an explanation says is in `sampling.explanation`; how
explanations are made is not here: see `penstock.cluster.worker.explained`.
"""
