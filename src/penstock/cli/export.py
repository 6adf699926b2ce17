"""`penstock export`: a run's model as a plain PyTorch module."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import ForceOption, JsonOption, TrustOption, measured, print_json
from penstock.cli.use import GraphOption, RunArgument, opened_graph
from penstock.terminal_progress import importing, shown_progress


def export_command(
    run: RunArgument,
    out: Annotated[Path, typer.Option(help="The folder to write.")],
    to: Annotated[str, typer.Option(help="torch, program (torch.export) or onnx.")] = "torch",
    graph: GraphOption = None,
    trust_module: TrustOption = False,
    force: ForceOption = False,
    as_json: JsonOption = False,
) -> None:
    """Write a run's best model as a PyTorch module that needs no Penstock, with weights in safetensors.

    Example: penstock export runs/synthetic-arxiv-sage-1 --out exported
    """
    with measured() as cost, shown_progress(as_json, f"Exporting the run in {run}.") as progress:
        with importing(progress, "torch"):
            from penstock.train.export.exported import export_session
            from penstock.train.use import open_session
        session = open_session(run, opened_graph(graph), progress=progress, trust_module=trust_module)
        found = export_session(session, out, to, force)
    if as_json:
        print_json({**found, **cost.fields()})
    else:
        print(f"{', '.join(found['files'])} written to {out}")
