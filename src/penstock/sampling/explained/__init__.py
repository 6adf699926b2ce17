"""Draws that know what is remote and what the model needs: fewer remote neighbours, chosen by explanations.

`locality_draw` holds the kernels and their mathematics, `scores` what an explanation says of remote vertices and
columns, and `sampler` the sampler over the parts of a cut graph. How explanations are made is not here: see
`penstock.cluster.worker.explained`.
"""
