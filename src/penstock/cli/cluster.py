"""`penstock cluster`: what asks a cluster's own scheduler for the machines of a cluster file."""

from pathlib import Path
from typing import Annotated

import typer

from penstock.cli.output import JsonOption, answer, check_new_file
from penstock.errors import PenstockError

cluster = typer.Typer(no_args_is_help=True, help="Hand a cluster file to Kubernetes or Slurm.")


@cluster.command("manifest")
def manifest_command(
    cluster_file: Annotated[Path, typer.Argument(metavar="CLUSTER", help="The cluster file.")],
    scheduler: Annotated[str, typer.Option("--for", help="kuberay or slurm.")],
    job: Annotated[str, typer.Option(help="The job file, by a path that all machines see.")] = "job.yaml",
    run: Annotated[str, typer.Option(help="The run folder, by a path that all machines see.")] = "runs/run",
    seen_as: Annotated[
        str | None, typer.Option(help="The cluster file's path on the machines.  [default: as here]")
    ] = None,
    name: Annotated[str | None, typer.Option(help="The job's name.  [default: the run folder's]")] = None,
    image: Annotated[str | None, typer.Option(help="Kubernetes: an image that has Penstock and Ray.")] = None,
    volume: Annotated[str | None, typer.Option(help="Kubernetes: CLAIM:PATH, a volume that all pods mount.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The file to write.  [default: print it]")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file if it exists.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Write a KubeRay RayJob or a batch script for Slurm that trains on a cluster file's machines.

    Example: penstock cluster manifest cluster.yaml --for slurm --job job.yaml --run runs/big -o big.sh

    Example: penstock cluster manifest cluster.yaml --for kuberay --image registry/penstock:1 --volume data:/data
    --seen-as /data/cluster.yaml --job /data/job.yaml --run /data/runs/big -o big.yaml
    """
    from penstock.cluster.cluster_file import read_cluster
    from penstock.cluster.manifests import MANIFESTS, SubmittedRun, default_name, manifest_of
    from penstock.graph.documents import read_yaml
    from penstock.graph.files import write_whole

    if not cluster_file.is_file():
        raise PenstockError(
            f"There is no cluster file {cluster_file}: name one (docs/cluster.md).", code="file-not-found"
        )
    if isinstance(read_yaml(cluster_file, "a cluster file").get("machines"), str):
        raise PenstockError(
            f"{cluster_file} leaves its machines to the launcher: list them, so that they can be asked for.",
            code="option-missing",
        )
    if out is not None:
        check_new_file(out, force)
    seen = seen_as or str(cluster_file)
    submitted = SubmittedRun(name or default_name(run), job, seen, run, image, volume)
    text = manifest_of(read_cluster(str(cluster_file)), submitted, scheduler)
    how = MANIFESTS[scheduler].submit
    if out is not None:
        write_whole(out, text)
    fields = {"for": scheduler, "name": submitted.name, "path": str(out) if out else None, "manifest": text}
    lines = [text.rstrip("\n")] if out is None else [f"Written to {out}; hand it in with: {how} {out}"]
    answer(as_json, fields, *lines)
