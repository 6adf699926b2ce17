"""The names of all samplers, which jobs choose from, and where each one's entry is defined."""

SAMPLERS = {
    "neighbour": "penstock.sampling.typed:NEIGHBOUR",
    "labor": "penstock.sampling.labor:LABOR",
    "fastgcn": "penstock.sampling.fastgcn:FASTGCN",
    "ladies": "penstock.sampling.ladies:LADIES",
    "saint-vertex": "penstock.sampling.saint:SAINT_VERTEX",
    "saint-edge": "penstock.sampling.saint:SAINT_EDGE",
    "saint-walk": "penstock.sampling.saint:SAINT_WALK",
    "explained": "penstock.sampling.explained.sampler:EXPLAINED",
    "cluster": "penstock.sampling.cluster:CLUSTER",
    "whole": "penstock.sampling.whole:WHOLE",
    "seeds": "penstock.sampling.seeds:SEEDS",
}
"""For each sampler, the module and the name of its entry. Modules are imported when their sampler is asked for."""
PLUGINS = "penstock.samplers"
"""The group of entry points by which packages offer further ones."""
SEEDS_ONLY = "seeds"
"""The sampler of models without layers."""
