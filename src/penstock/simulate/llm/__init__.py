"""One step of training a large language model as a workload: dense or with experts, in stages, over data ranks.

`model` and `presets` say what is trained, `parallelism` how it is spread, `job` all that a step depends on; `costs` are
seconds and bytes, `schedule` the order of a stage's passes, `tokens` who sends how much to which experts. `step` puts
them together with `experts` (all-to-alls), `gradients` (rings over data ranks) and `fabric` (the network); `document`
is a job in a file. What is simulated for all: see `parallelism`.
"""

from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import Compute, ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import Model
from penstock.simulate.llm.parallelism import Parallelism
from penstock.simulate.llm.presets import PRESETS, preset
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
