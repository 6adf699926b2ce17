"""The profile of a machine: every operator measured on the ladder, rates fitted, errors on held-out measurements."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import torch

from penstock.cost.fit import fit_and_compare, fit_rates, fit_steps, seconds_of_runs, undisturbed
from penstock.cost.model import BATCH, CostModel, cached_path, cached_profile
from penstock.cost.operators import OPERATORS, Operator, Rung
from penstock.cost.operators.entry import HELD_OUT, RUNGS, made_ladder, rungs_on
from penstock.cost.profile import (
    CostSpread,
    FittedOperator,
    MeasuredMachine,
    OperatorCost,
    Profile,
    this_machine,
    write_profile,
)
from penstock.errors import PenstockError
from penstock.graph.folder import Graph
from penstock.memory import freed_memory_kept
from penstock.nn.operator_costs import Amounts, seconds_of
from penstock.progress import SILENT, Progress

# How much of the cores other programs used during a measurement, which then took longer.

STAT = Path("/proc/stat")
NOTICED = 0.1
"""The share of the cores from which other programs are worth a warning."""
_FIELDS = 8
"""Of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal. Guests are in the first."""


class CpuTimes(NamedTuple):
    """Seconds of all cores since the machine started, and of this process with its children that have ended."""

    total: float
    idle: float
    own: float


def cpu_times() -> CpuTimes | None:
    """The current times; None where the system does not report them."""
    used = os.times()
    with suppress(OSError, ValueError):
        ticks = [int(word) for word in STAT.read_text().splitlines()[0].split()[1 : 1 + _FIELDS]]
        if len(ticks) == _FIELDS:
            second = os.sysconf("SC_CLK_TCK")
            return CpuTimes(sum(ticks) / second, (ticks[3] + ticks[4]) / second, sum(used[:4]))
    return None


def share_of_others(start: CpuTimes | None, end: CpuTimes | None) -> float:
    """The share of all cores that other programs, or other virtual machines, used in between; 0 if unknown."""
    if start is None or end is None or end.total <= start.total:
        return 0.0
    total, idle, own = (later - before for before, later in zip(start, end, strict=True))
    return min(1.0, max(0.0, (total - idle - own) / total))


def others_warning(share: float) -> list[str]:
    """A warning if other programs used so much of the cores that measurements suffered."""
    if share < NOTICED:
        return []
    return [
        f"Other programs used {100 * share:.0f} % of the cores meanwhile, so operators seem slower than they are:"
        " measure again with --refit when the machine is idle"
    ]


_REPEATS = 2
"""How often a measurement may be repeated."""
_DISTURBED = 1.05
"""A measurement is repeated if it exceeds what the others predict by this factor."""
MODE = "operators"
"""The mode of a machine's profile, which belongs to no job."""


BatchFit = Callable[[CostModel, str, Progress], list[FittedOperator]]
"""Fits what batches of runs take beyond their operators on a device. It trains, so the caller provides it."""


def machine_profile(
    refit: bool = False,
    graph: Graph | None = None,
    progress: Progress = SILENT,
    fit_batches: BatchFit | None = None,
) -> Profile:
    """This machine's profile, from the cache unless it has changed, `refit` is asked for or a graph refines it."""
    machine = this_machine()
    if graph is not None:
        graph.require_one_relation("Refining operators", "give another graph, or leave out --graph")
        if not graph.num_edges:
            raise PenstockError(
                f"Graph {graph.name!r} has no edges to refine operators by: give another graph, or leave out --graph.",
                code="missing-data",
            )
    known = None if refit or graph is not None else cached_profile(machine)
    lacking = [] if known is None else lacking_operators(known)
    found = known
    if found is None:
        found = measure_machine(machine, graph, progress)
    elif lacking:
        found = completed(found, lacking, progress)
    if fit_batches is not None:
        found = _with_batches(found, fit_batches, progress)
    if found is known:
        return known
    path = cached_path(machine)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_profile(found, path)
    return found


def _with_batches(profile: Profile, fit_batches: BatchFit, progress: Progress) -> Profile:
    """The profile with the times of batches in runs on each device, if it lacks them."""
    start, model = time.perf_counter(), CostModel(profile)
    devices = [device for device in ("cpu", "cuda") if model.knows("dense", device) and not model.knows(BATCH, device)]
    if not devices:
        return profile
    with progress.step("Measuring batches"):
        fits = [*profile.fits, *(fit for device in devices for fit in fit_batches(model, device, progress))]
    return profile.model_copy(update={"fits": fits, "seconds": profile.seconds + time.perf_counter() - start})


def lacking_operators(profile: Profile) -> list[tuple[Operator, str]]:
    """Operators, each with its device, that a profile of an earlier release lacks."""
    known = {(fit.name, fit.device) for fit in profile.fits}
    devices = [device for device in ("cpu", "cuda") if any(fit.device == device for fit in profile.fits)]
    pairs = [(entry, device) for device in devices for entry in OPERATORS.values() if device in entry.devices]
    return [(entry, device) for entry, device in pairs if (entry.name, device) not in known]


@freed_memory_kept()
def completed(known: Profile, lacking: list[tuple[Operator, str]], progress: Progress = SILENT) -> Profile:
    """A machine's profile with its missing operators measured; others are not measured again."""
    assert known.machine is not None
    start = time.perf_counter()
    rungs, held_out = _ladder(progress)
    points, fits = _measured(lacking, rungs, held_out, known.machine, progress)
    seconds = (known.seconds or 0.0) + time.perf_counter() - start
    more = {"operators": [*known.operators, *points], "fits": [*known.fits, *fits], "seconds": seconds}
    return known.model_copy(update=more)


@freed_memory_kept()
def measure_machine(machine: MeasuredMachine, graph: Graph | None = None, progress: Progress = SILENT) -> Profile:
    """Measure and fit every operator on every device that there is."""
    start, times = time.perf_counter(), cpu_times()
    rungs, held_out = _ladder(progress)
    if graph is not None:
        more = list(rungs_on(graph))
        rungs, held_out = rungs + more, held_out + [place % 3 == 2 for place in range(len(more))]
    devices = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    pairs = [(entry, device) for device in devices for entry in OPERATORS.values() if device in entry.devices]
    points, fits = _measured(pairs, rungs, held_out, machine, progress)
    skipped = [] if "cuda" in devices else ["cuda: this machine has no GPU that torch can use"]
    job = {} if graph is None else {"graph": graph.name}
    found = Profile(mode=MODE, job=job, operators=points, machine=machine, fits=fits, skipped=skipped)
    with progress.step("Measuring steps"):
        fits = [*fits, fit_steps(CostModel(found), rungs, "cpu")]
    others, seconds = share_of_others(times, cpu_times()), time.perf_counter() - start
    said = {"others": others, "warnings": others_warning(others)}
    return found.model_copy(update={"fits": fits, "seconds": seconds, **said})


def _ladder(progress: Progress) -> tuple[list[Rung], list[bool]]:
    """The rungs, and which of them are held out."""
    with progress.step("Making graphs", RUNGS, "graphs"):
        return made_ladder(progress), [place in HELD_OUT for place in range(RUNGS)]


def _measured(
    pairs: list[tuple[Operator, str]],
    rungs: list[Rung],
    held_out: list[bool],
    machine: MeasuredMachine,
    progress: Progress,
) -> tuple[list[OperatorCost], list[FittedOperator]]:
    """Measurements and fitted rates of operators on their devices."""
    points, fits = list[OperatorCost](), list[FittedOperator]()
    with progress.step("Measuring operators", len(pairs), "operators"):
        for entry, device in pairs:
            progress.status(f"{entry.name} on {device}")
            measured, fit = measure_operator(entry, rungs, held_out, device, machine)
            points += measured
            fits.append(fit)
            progress.advance(1)
    return points, fits


def measure_operator(
    entry: Operator, rungs: list[Rung], held_out: list[bool], device: str, machine: MeasuredMachine
) -> tuple[list[OperatorCost], FittedOperator]:
    """An operator's measurements on some rungs, and the rates of those that are not held out."""
    processor = machine.processor_of(device)
    known = [place for place, rung in enumerate(rungs) if entry.measured_on(rung, device)]
    rungs, held_out = [rungs[place] for place in known], [held_out[place] for place in known]
    sizes = [{name: float(size) for name, size in entry.sizes(rung).items()} for rung in rungs]
    work = [entry.work(each, processor) for each in sizes]
    first, times = _times(entry, rungs, torch.device(device))
    for _ in range(_REPEATS):
        _repeat_disturbed(entry, rungs, work, times, torch.device(device))
    seconds = [undisturbed(each) for each in times]
    fit = fit_and_compare(entry.name, device, work, seconds, held_out)
    first_use = max(0.0, first - seconds[0]) if entry.first_use else 0.0
    cores = entry.cores or (machine.cores if device == "cpu" else 1.0)
    points = {
        str(each): OperatorCost(
            name=entry.name,
            device=device,
            sizes=each,
            iterations=len(runs),
            seconds=CostSpread(mean=middle, shape=CostSpread.of(runs).shape),
            cores=cores,
        )
        for each, runs, middle in zip(sizes, times, seconds, strict=True)
    }
    return list(points.values()), fit.model_copy(update={"first_use": first_use, "ranges": ranges_of(sizes)})


def ranges_of(sizes: list[dict[str, float]]) -> dict[str, tuple[float, float]]:
    """The smallest and the largest of each size."""
    names = dict.fromkeys(name for each in sizes for name in each)
    values = {name: [each[name] for each in sizes if name in each] for name in names}
    return {name: (min(found), max(found)) for name, found in values.items()}


def _times(entry: Operator, rungs: list[Rung], device: torch.device) -> tuple[float, list[list[float]]]:
    """Seconds of the very first run, and of the runs on each rung."""
    if entry.measure_all is not None:
        return 0.0, entry.measure_all(rungs)
    assert entry.prepare is not None
    found = [seconds_of_runs(entry.prepare(rung, device), device) for rung in rungs]
    return found[0][0], [times for _, times in found]


def _repeat_disturbed(
    entry: Operator, rungs: list[Rung], work: list[Amounts], times: list[list[float]], device: torch.device
) -> None:
    """Repeat measurements that took longer than the other sizes predict: other programs may have interfered."""
    if entry.prepare is None:
        return
    seconds = [undisturbed(each) for each in times]
    rates = fit_rates(work, seconds)
    for place, rung in enumerate(rungs):
        if seconds[place] > _DISTURBED * seconds_of(rates, work[place]):
            times[place] += seconds_of_runs(entry.prepare(rung, device), device)[1]
