"""`penstock recipes`: job files that give published figures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from penstock.cli.output import ForceOption, JsonOption, SeedOption, check_new_file, print_json
from penstock.errors import PenstockError
from penstock.graph.files import write_whole

if TYPE_CHECKING:
    from penstock.train.recipes import Recipe


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
