"""One step of training a large language model as a workload: dense or with experts, in stages, over data ranks.

`model` says what is trained, how it is spread and in what order a stage works, `job` all that a step depends on and
what it costs. `step` puts them together with `collectives` (all-to-alls of experts, rings over data ranks) and
`fabric` (the network); `document` is a job in a file. Which GPUs are simulated for all: see `model`.
"""

from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import PRESETS, Model, Parallelism, preset
from penstock.simulate.llm.step import LlmStep, build_step

__all__ = [
    "PRESETS",
    "Compute",
    "ExpertExchange",
    "GradientReduction",
    "LlmJob",
    "LlmStep",
    "Model",
    "Parallelism",
    "Servers",
    "build_step",
    "preset",
]
