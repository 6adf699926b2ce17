"""Recipes: for a data set and a model, the job that gives the published figure, with that figure and its source.

Each is a YAML file of the package. Its `job` names the set's archive (`cora.npz`); all else of the file is about the
figure. Figures are percentages.
"""

from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import Field

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import StrictDocument, read_yaml, validated

_SEEDS = 10
"""Seeds behind most results; a recipe with another number says so."""
_DONE = {"scale_features": "scaled", "largest_component": "component", "train_on_validation": "joined"}
"""What a folder's name says of each preparation."""
_FOLDER = Path(__file__).parents[1] / "shipped" / "recipes"


class Reached(StrictDocument):
    """The result of the recipe's job."""

    mean: float
    deviation: float = Field(description="standard deviation over the seeds")
    seeds: int = Field(ge=1)


class Recipe(StrictDocument):
    """A data set, a model, and the job that trains it."""

    set: str = Field(description="the data set, by the name of its archive")
    model: str = Field(description="the model; of knowledge graphs the scorer")
    metric: str
    published: float | None = None
    source: str | None = Field(None, description="who published the figure, and where")
    from_memory: bool = Field(False, description="whether the figure was quoted without the paper at hand")
    plain: float | None = Field(None, description="what a plain untuned two-layer GCN reaches on the same file")
    reached: Reached | None = None
    split_by_seed: bool = Field(False, description="whether seed k takes split k")
    needs_gpu: bool = Field(False, description="whether it takes hours without a GPU")
    note: str | None = None
    prepare: dict[str, bool] = Field({}, description="what is done to the archive first: `penstock data prepare`")
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """The recipe's name, as set:model."""
        return f"{self.set}:{self.model}"

    @property
    def prepared_name(self) -> str:
        """The folder that the archive is prepared to: recipes of a set that need the same share it."""
        return "-".join([self.set, *(_DONE[name] for name, wanted in self.prepare.items() if wanted)])

    @property
    def published_text(self) -> str:
        """The published figure, marked with * where it was quoted from memory; empty where there is none."""
        return "" if self.published is None else f"{self.published:.1f}{' *' if self.from_memory else ''}"

    @property
    def reached_text(self) -> str:
        """The result, as mean and deviation over its seeds; empty where it was not measured."""
        if self.reached is None:
            return ""
        seeds = self.reached.seeds
        spread = f" ± {self.reached.deviation:.2f}" if seeds > 1 else ""
        return f"{self.reached.mean:.2f}{spread}" + ("" if seeds == _SEEDS else f" (seeds: {seeds})")

    def fields(self, seed: int, folder: Path | None = None) -> dict[str, Any]:
        """The job's fields for a seed, with the archive, or the folder that it is prepared to, in `folder`."""
        name = self.prepared_name if self.prepare else self.job["graph"]
        graph = name if folder is None else str(folder / name)
        return {**self.job, "graph": graph, "seed": seed, **({"split_number": seed} if self.split_by_seed else {})}


@cache
def shipped_recipes() -> tuple[Recipe, ...]:
    """All recipes that come with Penstock, sorted by set and model."""
    return tuple(_read(file) for file in sorted(_FOLDER.glob("*.yaml")))


def recipes_for(data_set: str) -> tuple[Recipe, ...]:
    """The recipes of a set."""
    found = tuple(recipe for recipe in shipped_recipes() if recipe.set == data_set)
    if not found:
        sets = sorted({recipe.set for recipe in shipped_recipes()})
        hint = nearest(data_set, sets)
        raise PenstockError(f"There is no recipe for the set {data_set!r}{hint}", code="unknown-name")
    return found


def recipe_for(data_set: str, model: str) -> Recipe:
    """The recipe of a set and a model."""
    of_set = {recipe.model: recipe for recipe in recipes_for(data_set)}
    if model not in of_set:
        raise PenstockError(
            f"There is no recipe for {data_set} with model {model!r}: choose among {', '.join(of_set)}.",
            code="unknown-name",
        )
    return of_set[model]


def prepared_graph(recipe: Recipe, archive: Path, folder: Path) -> Path:
    """The graph of a recipe's job: the archive itself, or what it is prepared to, which is made in `folder`."""
    if not recipe.prepare:
        return archive
    # Kernels are imported by those who need a graph.
    from penstock.graph.convert import load
    from penstock.graph.prepare import prepare

    out = folder / recipe.prepared_name
    done: dict[str, Any] = recipe.prepare
    prepare(load(archive), out, **done)
    return out


def job_text(recipe: Recipe, seed: int = 0, folder: Path | None = None) -> str:
    """The recipe's job as a job file, headed by the figure that it is for."""
    about = [f"{recipe.set}, {recipe.model}: {recipe.metric}"]
    if recipe.published is not None:
        about[0] += f" {recipe.published_text} published"
        about.append(f"{recipe.source}")
    if recipe.reached is not None:
        about.append(f"{recipe.reached_text} reached, {recipe.reached.seeds} seeds")
    if recipe.split_by_seed:
        about.append("Another seed takes another split: change seed and split_number together.")
    if recipe.prepare:
        flags = " ".join(f"--{name.replace('_', '-')}" for name, wanted in recipe.prepare.items() if wanted)
        archive, made = ((folder or Path()) / name for name in (recipe.job["graph"], recipe.prepared_name))
        about.append(f"Prepare its graph first: penstock data prepare {archive} {flags} --out {made}")
    if recipe.note:
        about.append(recipe.note)
    lines = [f"{name}: {_in_yaml(value)}" for name, value in recipe.fields(seed, folder).items()]
    return "\n".join([*(f"# {line}" for line in about), *lines, ""])


def _in_yaml(value: Any) -> str:
    """A value as YAML on one line."""
    text: str = yaml.safe_dump(value, default_flow_style=True, width=10_000)
    return text.removesuffix("\n...\n").strip()


def _read(path: Path) -> Recipe:
    return validated(Recipe, read_yaml(path, "a recipe"), f"{path} is not a recipe")
