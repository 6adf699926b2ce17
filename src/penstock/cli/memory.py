"""`penstock memory`: what a job will take of a device and of the host, before it runs."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.job_flags import takes_job_flags
from penstock.cli.output import JsonOption, print_json
from penstock.quantities import parsed_bytes
from penstock.terminal_progress import importing, shown_progress

if TYPE_CHECKING:
    from penstock.train.memory.forecast import MemoryForecast


@takes_job_flags
def memory_command(
    job: Annotated[Path | None, typer.Argument(help="A job file (YAML); flags replace its fields.")] = None,
    device_memory: Annotated[
        str | None, typer.Option(help="Memory of the device, such as 80GB; that of the GPU here by default.")
    ] = None,
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
        from penstock.train.job import make_job, read_job

        with importing(progress, "torch"):
            from penstock.api import memory_of_job
        chosen = make_job(fields, "The command") if job is None else read_job(job, fields)
        found, size = memory_of_job(chosen, device_memory=size)
    if as_json:
        from penstock.train.memory.document import forecast_fields

        print_json(forecast_fields(found, size))
    else:
        _print(found, size)


def _print(found: "MemoryForecast", size: int | None) -> None:
    """A table on a terminal, and plain lines elsewhere."""
    from penstock.train.memory.document import bar_of, forecast_fields, size_text

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
    print(f"Predicted in {found.seconds:.1f} s, {found.method}: {found.reason}.")
