"""Plans, runs and simulations in numbers that can be set side by side."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from penstock.errors import PenstockError
from penstock.graph.documents import read_yaml
from penstock.graph.files import read_document
from penstock.report.run_folder import listed, mapping, number, numbers, whole

_OWN = ("run", "order_costs")
"""Fields that differ between any two runs and are not compared."""
_UNDERSTOOD = "a plan, a run folder, or what `penstock train`, `plan` or `simulate` print with --json"


@dataclass(frozen=True)
class ComparedDocument:
    """One of the things that are compared; `quantities` are in seconds, bytes, MiB, shares or counts, by name."""

    name: str
    kind: str
    quantities: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)
    """The job's fields, of a run folder."""


@dataclass(frozen=True)
class Difference:
    """A quantity that all subjects have; differences and ratios are to the first of them."""

    name: str
    values: list[float]
    differences: list[float]
    ratios: list[float | None]
    """None where the first value is 0."""


def read_subject(path: Path) -> ComparedDocument:
    """The plan, run or simulation at a path."""
    if path.is_dir():
        if not (path / "run.json").is_file():
            raise PenstockError(f"{path} is a folder without run.json: name {_UNDERSTOOD}.", code="wrong-file")
        settings = read_yaml(path / "job.yaml", "the run's job") if (path / "job.yaml").is_file() else {}
        return ComparedDocument(str(path), "run", _of_run(mapping(_read(path / "run.json").get("result"))), settings)
    document = _read(path)
    if document.get("format") == "penstock-run":
        return ComparedDocument(str(path), "run", _of_run(mapping(document.get("result"))))
    if document.get("format") == "penstock-plan" or {"predicted", "compared", "placement"} <= set(document):
        return ComparedDocument(str(path), "plan", _of_plan(document))
    if "makespan_s" in document:
        return ComparedDocument(str(path), "simulation", _of_simulation(document))
    if "epoch_seconds" in document:
        return ComparedDocument(str(path), "run", _of_run(document))
    raise PenstockError(f"{path} cannot be compared: name {_UNDERSTOOD}.", code="wrong-file")


def compare(subjects: list[ComparedDocument]) -> list[Difference]:
    """Every quantity that all subjects have, in the order of the first."""
    first, *others = subjects
    shared = [name for name in first.quantities if all(name in other.quantities for other in others)]
    if not shared:
        what = ", ".join(f"{each.name} (a {each.kind})" for each in subjects)
        raise PenstockError(
            f"These files have no quantity in common: {what}; compare files that measure or predict the same thing.",
            code="mismatched-inputs",
        )
    return [_difference(name, [each.quantities[name] for each in subjects]) for name in shared]


def different_settings(jobs: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The fields in which some jobs differ, with the value of each; None where a job lacks one."""
    names = dict.fromkeys(name for job in jobs for name in job if name not in _OWN)
    values = {name: [job.get(name) for job in jobs] for name in names}
    return {name: each for name, each in values.items() if any(value != each[0] for value in each)}


def _difference(name: str, values: list[float]) -> Difference:
    base = values[0]
    ratios = [value / base if base else None for value in values]
    return Difference(name, values, [value - base for value in values], ratios)


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_document(path))
    except FileNotFoundError:
        raise PenstockError(f"{path} does not exist: name {_UNDERSTOOD}.", code="file-not-found") from None
    except (OSError, ValueError, RecursionError) as error:
        raise PenstockError(
            f"{path} is not JSON ({' '.join(str(error).split())}): name {_UNDERSTOOD}.", code="wrong-file"
        ) from None
    if not isinstance(document, dict):
        raise PenstockError(f"{path} is not one JSON object: name {_UNDERSTOOD}.", code="wrong-file")
    return document


def _of_plan(document: Mapping[str, Any]) -> dict[str, float]:
    said = mapping(document.get("predicted"))
    found = _picked(said, "iteration_s", "epoch_s", "lower_bound_s")
    if sizes := numbers(said.get("link_bytes")):
        found["busiest_link_bytes"] = max(sizes.values())
        found["link_bytes"] = sum(sizes.values())
    if use := numbers(said.get("link_utilisation")):
        found["busiest_link_utilisation"] = max(use.values())
    if memory := numbers(said.get("memory_gb")):
        found["memory_gb"] = sum(memory.values())
    return found


def _of_run(result: Mapping[str, Any]) -> dict[str, float]:
    """The quantities of a run: its median epoch, without the first (which compiles kernels) where there are more."""
    found: dict[str, float] = {}
    epochs = [each for each in map(number, listed(result.get("epoch_seconds"))) if each is not None]
    batches = whole(result.get("batches"))
    if epochs:
        typical = median(epochs[1:] or epochs)
        if batches:
            found["iteration_s"] = typical / batches
        found["epoch_s"] = typical
    found |= _picked(result, "seconds", "epochs", "seeds_per_second", "batches_per_second", "train_loss", "best_value")
    for split in ("val", "test"):
        found |= {f"{split}.{name}": value for name, value in numbers(result.get(split)).items()}
    found |= _picked(result, "bytes_received", "bytes_minimum", "peak_rss_mb", "device_peak_mb")
    return found


def _of_simulation(document: Mapping[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    iteration = number(document.get("iteration_s"))
    iteration = number(document.get("step_s")) if iteration is None else iteration
    if iteration is not None:
        found["iteration_s"] = iteration
    found |= _picked(document, "makespan_s", "step_s", "exposed_communication_s", "bubble_fraction")
    # This is the bound of the whole makespan; a plan's is of one iteration.
    if (bound := number(document.get("lower_bound_s"))) is not None:
        found["makespan_lower_bound_s"] = bound
    coflows = _picked(mapping(document.get("coflows")), "mean_cct_s", "p95_cct_s")
    found |= {f"coflows.{name}": value for name, value in coflows.items()}
    links = [numbers(each).get("utilisation") for each in mapping(document.get("links")).values()]
    if use := [each for each in links if each is not None]:
        found["busiest_link_utilisation"] = max(use)
    return found


def _picked(given: Mapping[str, Any], *names: str) -> dict[str, float]:
    found = {name: number(given.get(name)) for name in names}
    return {name: value for name, value in found.items() if value is not None}
