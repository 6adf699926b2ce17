"""What do orders of coflows bring to training of large language models, in the simulator?

`--study table`: Mixtral-8x7B on 1,024 GPUs under every order. `--study sizes`: 1,024 to 8,192 GPUs (more data ranks)
for Qwen-MoE-24L, Mixtral-8x22B (32 layers) and GPT-3 175B. `--study rates`: 40 to 400 Gb/s a server, 1,024 GPUs.
`--study grid`: where orders bring most. `--study queues`: how many queues an order needs. `--study matchings`: how
all-to-alls are sent. Degrees: 8 tensor ranks, 8 stages, experts over 8 data ranks (Qwen 4). A server has one NIC; GPUs
reach half of 312 TFLOP/s.
Run: python benchmarks/coflows.py [--study table,sizes,rates,grid,queues,matchings] [--microbatches 8] [--json]
"""

import argparse
import time
from dataclasses import replace
from typing import Any

from penstock.simulate.llm.fabric import Servers
from penstock.simulate.llm.job import ExpertExchange, GradientReduction, LlmJob
from penstock.simulate.llm.model import Parallelism, preset
from penstock.simulate.llm.step import LlmStep, build_step
from penstock.simulate.rates import COFLOW_POLICIES
from penstock.simulate.simulation import Simulator, with_queues
from penstock.simulate.timeline import bubble_fraction, coflow_times, step_seconds
from products_graph import show

MODELS = {"qwen-moe-24l": 4, "mixtral-8x22b-32l": 8, "gpt3-175b": 1}
"""The source's simulated models, and over how many data ranks their experts are spread. Qwen's 32 expert ranks are the
32 GPUs of four data ranks: 1,024 GPUs have only 16 data ranks."""
COMPARED = ("fair", "ep-over-dp", "hermod", "slack")
STEPS = 3


def job_of(model: str, expert: int, given: argparse.Namespace, gpus: int = 1024, gbps: float = 100.0) -> LlmJob:
    """A model on so many GPUs, servers of eight with one NIC each."""
    parallel = Parallelism(8, 8, gpus // 64, expert, given.microbatches, given.size)
    servers = Servers(gpus // 8, nics=1, nic_gbps=gbps)
    return LlmJob(preset(model), parallel, servers, exchange=ExpertExchange(schedule="fair", detail="ports"))


def measured(step: LlmStep, policy: str, queues: int | None = None) -> dict[str, Any]:
    """A step under an order."""
    began = time.perf_counter()
    simulator = Simulator(step.load, step.network, STEPS, policy)
    if queues is not None:
        simulator = with_queues(simulator, step.placement, queues)
    found = simulator.timeline(step.placement)
    return {
        "policy": policy,
        "step_s": step_seconds(found.case, found.ends),
        "bubble": bubble_fraction(found, step.placement),
        "mean_cct_s": coflow_times(found).mean_cct_s,
        "events": found.events,
        "seconds": time.perf_counter() - began,
    }


def compared(job: LlmJob, policies: tuple[str, ...], **said: Any) -> list[dict[str, Any]]:
    """A step under several orders; `speedup` is over the first."""
    step = build_step(job)
    rows = [said | measured(step, policy) for policy in policies]
    return [row | {"speedup": rows[0]["step_s"] / row["step_s"]} for row in rows]


def table(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Every order on Mixtral-8x7B, 1,024 GPUs; and how the answer depends on what the source does not say."""
    rows = []
    for microbatches, size in ((given.microbatches, given.size), (16, 1), (8, 8)):
        chosen = argparse.Namespace(microbatches=microbatches, size=size)
        said = {"study": "table", "model": "mixtral-8x7b", "microbatches": microbatches, "sequences": size}
        rows += compared(job_of("mixtral-8x7b", 8, chosen), tuple(COFLOW_POLICIES), **said)
    return rows


def sizes(given: argparse.Namespace) -> list[dict[str, Any]]:
    """More data ranks."""
    return [
        row
        for model, expert in MODELS.items()
        for gpus in (1024, 2048, 4096, 8192)
        for row in compared(job_of(model, expert, given, gpus), COMPARED, study="sizes", model=model, gpus=gpus)
    ]


def rates(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Faster networks."""
    return [
        row
        for model, expert in MODELS.items()
        for gbps in (40.0, 100.0, 200.0, 400.0)
        for row in compared(job_of(model, expert, given, gbps=gbps), COMPARED, study="rates", model=model, gbps=gbps)
    ]


def grid(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Where orders bring most: few microbatches, gradients in 32 bits, slow and fast networks."""
    rows = []
    for model, expert in {"mixtral-8x7b": 8, "qwen-moe-24l": 4, "gpt3-175b": 1}.items():
        for microbatches in (2, 8, 32):
            for gbps in (25.0, 100.0, 400.0):
                chosen = argparse.Namespace(microbatches=microbatches, size=given.size)
                job = replace(job_of(model, expert, chosen, gbps=gbps), reduction=GradientReduction(gradient_bytes=4))
                said = {"study": "grid", "model": model, "microbatches": microbatches, "gbps": gbps}
                rows += compared(job, COMPARED, **said)
    return rows


def queues(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Fewer queues than ranks."""
    step = build_step(job_of("mixtral-8x7b", 8, given))
    rows = [
        {"study": "queues", "queues": count} | measured(step, policy, count)
        for policy in ("hermod", "slack")
        for count in (1, 2, 4, 8, None)
    ]
    return [row | {"speedup": rows[0]["step_s"] / row["step_s"]} for row in rows]


def matchings(given: argparse.Namespace) -> list[dict[str, Any]]:
    """How the all-to-all is sent, under `hermod`, with ten microseconds a phase."""
    rows = []
    for skew in (0.0, 0.5, 1.0):
        for schedule in ("fair", "matched", "bvn"):
            job = job_of("mixtral-8x7b", 8, given)
            step = build_step(replace(job, exchange=ExpertExchange(schedule=schedule, skew=skew, detail="ports")))
            rows.append({"study": "matchings", "skew": skew, "schedule": schedule} | measured(step, "hermod"))
        fair = rows[-3]["step_s"]
        rows[-3:] = [row | {"speedup": fair / row["step_s"]} for row in rows[-3:]]
    return rows


STUDIES = {"table": table, "sizes": sizes, "rates": rates, "grid": grid, "queues": queues, "matchings": matchings}


def main() -> None:
    """Run the studies asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--study", default=",".join(STUDIES))
    parser.add_argument("--microbatches", type=int, default=8, help="of a data rank, in a step")
    parser.add_argument("--size", type=int, default=1, help="sequences of a microbatch")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    for study in given.study.split(","):
        show(f"coflows: {study}", STUDIES[study](given), given.json)


if __name__ == "__main__":
    main()
