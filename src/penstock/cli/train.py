"""`penstock train`, `memory` and `recipes`: train a job, what memory it will take, job files of published figures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.job_flags import chosen_job, refuse_value_of_switch, takes_job_flags
from penstock.cli.output import ForceOption, JsonOption, SeedOption, TrustOption, as_named, check_new_file, print_json
from penstock.errors import PenstockError
from penstock.formatting import counted, parsed_bytes
from penstock.graph.files import write_whole
from penstock.progress import Progress
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.api import Run
    from penstock.train.memory.forecast import MemoryForecast
    from penstock.train.recipes import Recipe


# `penstock train`: train a model from a job, or resume a run.


@takes_job_flags
def train_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    resume: Annotated[Path | None, typer.Option("--resume", help="A run folder to go on from.")] = None,
    from_run: Annotated[
        Path | None,
        typer.Option("--from", help="A run whose weights, and job if none is named, to begin with."),
    ] = None,
    cluster: Annotated[
        str | None, typer.Option(help="A cluster file, or 2x2: two machines of two workers here.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs of this host to use, with a process for each.")] = None,
    plan: Annotated[Path | None, typer.Option(help="A plan to carry out (penstock plan).")] = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Train a model; every field of a job is a flag (docs/job.md lists them).

    Example: penstock train --graph synthetic-arxiv --model sage --fanouts 15,10,5 --epochs 5

    Example: penstock train job.yaml --lr 0.01

    Example: penstock train job.yaml --cluster cluster.yaml

    Example: penstock train --resume runs/synthetic-arxiv-sage-1

    Example: penstock train --from runs/may --graph data/june --epochs 2
    """
    if from_run is not None:
        fields["from_run"] = str(from_run)
    with shown_progress(as_json, _opening(job, resume, plan, fields)) as progress:
        run = _trained(job, resume, cluster, gpus, plan, force, trust_module, fields, progress)
    if as_json:
        print_json({**run.result, "state": run.state, "report": run.page and str(run.page), "notes": progress.notes})
    else:
        _print_run(run)
    if run.state == "interrupted":
        raise KeyboardInterrupt(f"{run.message} Resume with: penstock train --resume {run.result['run']}")


def _opening(job: Path | None, resume: Path | None, plan: Path | None, fields: dict[str, Any]) -> str:
    """The line that a terminal shows before anything large is imported."""
    if resume is not None:
        return f"Resuming the run in {as_named(resume)}."
    told = [f"the plan {plan}"] if plan else [f"the job {job}"] if job else []
    if fields.get("graph"):
        told.append(f"the graph {fields['graph']}")
    return f"Training: {' and '.join(told) or 'the default job'}."


def _trained(
    job: Path | None,
    resume: Path | None,
    cluster: str | None,
    gpus: int | None,
    plan: Path | None,
    force: bool,
    trust_module: bool,
    fields: dict[str, Any],
    progress: Progress,
) -> "Run":
    if job is not None:
        refuse_value_of_switch(str(job))
    # Errors of the job are reported before torch is imported, which takes seconds.
    named = job is not None or "from_run" not in fields
    chosen = chosen_job(job, fields) if plan is None and resume is None and named else None
    with importing(progress, "torch"):
        from penstock.api import train
    if plan is not None:
        if any(each is not None for each in (job, resume, cluster, gpus)):
            raise PenstockError(
                "A plan holds its job and its cluster: give --plan alone, with flags such as --epochs.",
                code="conflicting-options",
            )
        return train(plan=plan, force=force, progress=progress, trust_module=trust_module, **fields)
    if chosen is not None:
        return train(job=chosen, cluster=cluster, gpus=gpus, force=force, progress=progress)
    if resume is None:
        ways: Any = {"cluster": cluster, "gpus": gpus, "force": force}
        return train(**ways, progress=progress, trust_module=trust_module, **fields)
    if any(each is not None for each in (job, cluster, gpus)) or set(fields) - {"epochs", "module"}:
        raise PenstockError(
            "A resumed run keeps its job: give --resume, and --epochs to train longer.", code="conflicting-options"
        )
    return train(resume=resume, progress=progress, trust_module=trust_module, **fields)


def _print_run(run: "Run") -> None:
    result = run.result
    print(f"{run.state}: {result['run']}")
    console = Console()
    if run.val or run.test:
        table = Table("", "validation", "test")
        for name in {**run.val, **run.test}:
            table.add_row(name, *(f"{scores[name]:.4f}" if name in scores else "-" for scores in (run.val, run.test)))
        console.print(table)
    if run.state == "interrupted":
        print(_done(result))
    best = f", best at {result['best_epoch']}" if result.get("best_epoch", -1) > 0 else ""
    shuffled = f", shuffled from {result['shuffled_from']}" if (result.get("shuffled_from") or 0) > 1 else ""
    console.print(
        f"{counted(result['epochs'], 'epochs')}{best}{shuffled}; {result['seconds']:.1f} s;"
        f" {result['seeds_per_second']:,.0f} seeds/s; {_limit(result)};"
        f" peak {result['peak_rss_mb']:,.0f} MB",
        highlight=False,
    )
    if run.page is not None:
        print(f"Report: {run.page}")


def _limit(result: dict[str, Any]) -> str:
    from penstock.pipeline.stages import StageTime, limit_words

    given = result.get("stages") or {}
    return limit_words(
        {name: StageTime(t["busy_s"], t["wait_s"], t["threads"], t["depth"]) for name, t in given.items()}
    )


def _done(result: dict[str, Any]) -> str:
    """How far an unfinished run got, in words."""
    loss = result.get("loss_so_far") if result.get("loss_so_far") is not None else result.get("train_loss")
    parts = [f"{result['steps']:,} of {counted(result['steps_planned'], 'batches')} done"]
    parts += [f"training loss {loss:.4f}"] if loss is not None else []
    if result.get("best_value") is not None:
        parts.append(f"best validation {result['best_value']:.4f}")
    return ", ".join(parts)


# `penstock memory`: what a job will take of a device and of the host, before it runs.


@takes_job_flags
def memory_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory of the device, such as 80GB; that of the GPU here by default.")
    ] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of one host that train together: what one takes.")] = 1,
    as_json: JsonOption = False,
    **fields: Any,
) -> None:
    """Predict a job's memory, on the device and on the host; no GPU is needed, and none is touched.

    Example: penstock memory job.yaml --device cuda

    Example: penstock memory --graph synthetic-arxiv --model gat --sampler whole --layers 3 --device cuda
    --device-memory 24GB
    """
    size = None if device_memory is None else parsed_bytes(device_memory, "--device-memory")
    with shown_progress(as_json, "Predicting memory.") as progress:
        with importing(progress, "torch"):
            from penstock.api import memory_of_job
        found, size = memory_of_job(chosen_job(job, fields), device_memory=size, gpus=gpus)
    if as_json:
        from penstock.train.memory.forecast import forecast_fields

        print_json(forecast_fields(found, size))
    else:
        _print_forecast(found, size)


def _print_forecast(found: "MemoryForecast", size: int | None) -> None:
    """Print a table on a terminal, and plain lines elsewhere."""
    from penstock.train.memory.forecast import bar_of, forecast_fields, size_text

    fields = forecast_fields(found, size)
    places = [("host", fields["host_memory"]["categories"], found.host)]
    if fields["device_memory"] is not None:
        kept = {"kept free by torch's allocator": found.device_reserved - found.device_allocated}
        places.insert(0, ("device", {**fields["device_memory"]["categories"], **kept}, found.device_bytes))
    table = Table("where", "for", "bytes", "")
    for place, parts, total in places:
        largest = max(parts.values(), default=1)
        for name, amount in parts.items():
            table.add_row(place, name, size_text(amount), bar_of(amount, largest))
        table.add_row(place, "together", size_text(total), "", end_section=True)
    if sys.stdout.isatty():
        Console().print(table)
    else:
        for place, parts, total in places:
            for name, amount in parts.items():
                print(f"{place} {name}: {size_text(amount)}")
            print(f"{place} together: {size_text(total)}")
    if fields["device_memory"] is not None:
        of = "" if size is None else f", of {size_text(size)}"
        needed, tensors = size_text(found.device_bytes), size_text(found.device_allocated)
        print(f"The GPU has to have {needed} free{of}; tensors take {tensors}.")
    if found.share is not None:
        print(f"Alone, it would fill the GPU for {found.share:.0%} of its time.")
    print(f"Peak: {found.moment}.")
    if fields["run"] is None:
        print(f"Seconds of the run are not predicted: {fields['run_unknown']}.")
    else:
        run = fields["run"]
        counts = f"{run['steps']:,} steps and {run['validations']:,} validations"
        print(f"The run takes about {run['total_s']:,.1f} s: {counts}.")
    print(f"Predicted in {found.seconds:.1f} s, {found.method}: {found.reason}.")


# `penstock recipes`: job files that give published figures.


def recipes_command(
    data_set: Annotated[str | None, typer.Argument(metavar="SET", help="A data set, such as cora.")] = None,
    model: Annotated[str | None, typer.Argument(help="A model of that set: its job file is printed.")] = None,
    data: Annotated[Path | None, typer.Option(help="The folder that holds the sets' archives.")] = None,
    seed: SeedOption = 0,
    out: Annotated[Path | None, typer.Option(help="Write the job file there instead of printing it.")] = None,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """List data sets and models with published figures, or print the job file that gives one.

    Example: penstock recipes

    Example: penstock recipes cora gat --out job.yaml
    """
    from penstock.train.recipes import job_text, recipe_for, recipes_for, shipped_recipes

    if data_set is None or model is None:
        if out is not None:
            raise PenstockError("--out writes one job file: name a set and a model before it.", code="option-missing")
        found = shipped_recipes() if data_set is None else recipes_for(data_set)
        if as_json:
            print_json({"recipes": [_facts(recipe) for recipe in found]})
        else:
            _print(found)
        return
    recipe = recipe_for(data_set, model)
    text = job_text(recipe, seed, data)
    if out is not None:
        check_new_file(out, force)
        write_whole(out, text)
    if as_json:
        written = {} if out is None else {"path": str(out)}
        print_json({**_facts(recipe), "job": recipe.fields(seed, data), **written})
    elif out is None:
        print(text, end="")
    else:
        print(f"{out} written: penstock train {out}")


def _facts(recipe: "Recipe") -> dict[str, Any]:
    return recipe.model_dump(exclude={"job"})


def _print(found: "tuple[Recipe, ...]") -> None:
    """Print a table on a terminal, and plain lines elsewhere."""
    rows = [
        (recipe.set, recipe.model, recipe.metric, recipe.published_text, recipe.reached_text, recipe.source or "")
        for recipe in found
    ]
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(row))
        return
    table = Table("set", "model", "metric", "published", "reached", "source")
    for row in rows:
        table.add_row(*row)
    Console().print(table)
    print("* quoted from memory. Print a job file with: penstock recipes SET MODEL")
