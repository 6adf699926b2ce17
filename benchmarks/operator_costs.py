"""How far the cost model's predictions are from measurements on six graphs that no rate was fitted to.

    python benchmarks/operator_costs.py --data DATA [--profile FILE] [--device cpu|cuda] [--json]

Operators on four kinds of batches of each graph, and whole training steps of SAGE, GCN and GAT with three fan-outs on
two of them. DATA holds the real graphs (cora.npz, ...); made ones take the place of those that are not there. The model
is this machine's (`penstock profile --operators`), or the profile that is named.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from penstock.cost.fit import seconds_of_runs, step_widths, training_step, undisturbed
from penstock.cost.model import CostModel, StepShape, counted_block, machine_model, predicted_layers, step_seconds
from penstock.cost.operators import OPERATORS, Operator, Rung
from penstock.cost.operators.entry import WHOLE, made_graph, rung_of
from penstock.cost.profile import read_profile
from penstock.graph.convert import load
from penstock.graph.folder import Graph
from penstock.memory import freed_memory_kept
from penstock.sampling import BatchKey, NeighbourSampler

REAL = ("cora", "coauthor-cs", "amazon-photo", "com-dblp", "soc-slashdot0902", "email-enron")
MADE = ((2_500, 4), (18_000, 9), (7_500, 31), (320_000, 7), (80_000, 12), (36_000, 10))
"""Vertices and mean degree of what stands for graphs that are not there."""
BATCHES: list[tuple[int, tuple[int, ...], int, int, int]] = [
    (WHOLE, (-1,), 0, 32, 20),
    (512, (10, 5), 0, 80, 64),
    (1024, (15, 10), 1, 160, 40),
    (256, (10, 10, 5), 0, 112, 47),
]
"""Seeds, fan-outs, which of the blocks, widths in and out."""
STEP_GRAPHS, FANOUTS = ("com-dblp", "soc-slashdot0902"), [[5, 5], [10, 5], [15, 10, 5]]
CLASSES, FEATURES, SEEDS = 40, 100, 1024


def graphs(data: Path) -> dict[str, Graph]:
    """The six graphs, made where the archive is not there."""
    found = {}
    for name, sizes in zip(REAL, MADE, strict=True):
        path = data / f"{name}.npz"
        found[name] = load(str(path)) if path.exists() else made_graph(*sizes, seed=7)
    return found


def measure(entry: Operator, rungs: list[Rung], device: torch.device) -> list[float]:
    """Seconds of an operator on some rungs."""
    if entry.measure_all is not None:
        return [undisturbed(times) for times in entry.measure_all(rungs)]
    assert entry.prepare is not None
    return [undisturbed(seconds_of_runs(entry.prepare(rung, device), device)[1]) for rung in rungs]


def operator_rows(model: CostModel, given: dict[str, Graph], device: torch.device) -> list[dict[str, Any]]:
    """One line for each operator: the errors of its predictions."""
    rungs = [(name, rung_of(graph, *batch)) for name, graph in given.items() for batch in BATCHES]
    lines = []
    for entry in OPERATORS.values():
        if device.type not in entry.devices or not model.knows(entry.name, device.type):
            continue
        seconds = measure(entry, [rung for _, rung in rungs], device)
        predicted = [model.seconds(entry.name, entry.sizes(rung), device.type) for _, rung in rungs]
        ratios = np.array(predicted) / np.array(seconds)
        errors = np.abs(ratios - 1)
        worst = int(errors.argmax())
        lines.append(
            {
                "operator": entry.name,
                "points": len(errors),
                "mean_error": float(errors.mean()),
                "p95_error": float(np.quantile(errors, 0.95)),
                "mean_ratio": float(ratios.mean()),
                "worst": f"{rungs[worst][0]} {BATCHES[worst % len(BATCHES)][:2]}: {ratios[worst]:.2f}",
                "seconds": seconds,
                "predicted": predicted,
                "sizes": [entry.sizes(rung) for _, rung in rungs],
            }
        )
    return lines


def step_rows(model: CostModel, given: dict[str, Graph], device: torch.device) -> list[dict[str, Any]]:
    """One line for each model, fan-out and graph: a whole step, predicted and measured."""
    lines = []
    for name in STEP_GRAPHS:
        for fanouts in FANOUTS:
            seeds = np.random.default_rng(0).choice(given[name].num_nodes, SEEDS, replace=False)
            batch = NeighbourSampler(given[name], fanouts, totals=True).sample(seeds, BatchKey(0, 0, 0))
            blocks = [counted_block(block) for block in batch.blocks]
            for kind in predicted_layers():
                widths = step_widths(kind, FEATURES, CLASSES, len(fanouts))
                run = training_step(model, kind, batch.blocks, FEATURES, CLASSES, device)
                seconds = undisturbed(seconds_of_runs(run, device)[1] + seconds_of_runs(run, device)[1])
                predicted = step_seconds(model, StepShape(kind, blocks, widths), device.type)
                lines.append(
                    {
                        "model": kind,
                        "graph": name,
                        "fanouts": ",".join(map(str, fanouts)),
                        "ms": seconds * 1e3,
                        "predicted_ms": predicted * 1e3,
                        "error": abs(predicted / seconds - 1),
                    }
                )
    return lines


def show(lines: list[dict[str, Any]], columns: list[str]) -> None:
    table = Table(*columns, box=None)
    for line in lines:
        table.add_row(*(f"{line[each]:.3g}" if isinstance(line[each], float) else f"{line[each]}" for each in columns))
    Console(width=150).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    model = machine_model() if asked.profile is None else CostModel(read_profile(asked.profile))
    given, device = graphs(asked.data), torch.device(asked.device)
    with freed_memory_kept():
        operators, steps = operator_rows(model, given, device), step_rows(model, given, device)
    if asked.json:
        print(json.dumps({"machine": model.machine.model_dump(), "operators": operators, "steps": steps}))
        return
    show(operators, ["operator", "points", "mean_error", "p95_error", "mean_ratio", "worst"])
    show(steps, ["model", "graph", "fanouts", "ms", "predicted_ms", "error"])
    errors = [line["error"] for line in steps]
    print(f"steps: mean error {np.mean(errors):.1%}, largest {max(errors):.1%}")


if __name__ == "__main__":
    main()
