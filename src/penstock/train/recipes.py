"""Recipes: for a data set and a model, the job that gives the published figure, with that figure and its source.

Each is a YAML file of the package. Its `job` names the set's archive (`cora.npz`); all else of the file is about the
figure. Figures are percentages.
"""

from functools import cache
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from penstock.errors import PenstockError, nearest
from penstock.graph.documents import StrictDocument, first_problem, read_yaml

_FOLDER = Path(__file__).parents[1] / "shipped" / "recipes"


class Reached(StrictDocument):
    """What the recipe's job gave."""

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
    job: dict[str, Any]

    @property
    def name(self) -> str:
        """set:model."""
        return f"{self.set}:{self.model}"

    def fields(self, seed: int, folder: Path | None = None) -> dict[str, Any]:
        """The job's fields for a seed, with the archive in `folder`."""
        graph = self.job["graph"] if folder is None else str(folder / self.job["graph"])
        return {**self.job, "graph": graph, "seed": seed, **({"split_number": seed} if self.split_by_seed else {})}


@cache
def shipped_recipes() -> tuple[Recipe, ...]:
    """All recipes that come with Penstock, sorted by set and model."""
    return tuple(_read(file) for file in sorted(_FOLDER.glob("*.yaml")))


def recipe_for(data_set: str, model: str) -> Recipe:
    """The recipe of a set and a model."""
    of_set = [recipe for recipe in shipped_recipes() if recipe.set == data_set]
    if not of_set:
        sets = sorted({recipe.set for recipe in shipped_recipes()})
        raise PenstockError(
            f"There is no recipe for the set {data_set!r}{nearest(data_set, sets)}", code="unknown-name"
        )
    for recipe in of_set:
        if recipe.model == model:
            return recipe
    models = ", ".join(recipe.model for recipe in of_set)
    raise PenstockError(
        f"There is no recipe for {data_set} with model {model!r}: choose among {models}.", code="unknown-name"
    )


def _read(path: Path) -> Recipe:
    try:
        return Recipe.model_validate(read_yaml(path, "a recipe"))
    except ValidationError as error:
        raise PenstockError(f"{path} is not a recipe: {first_problem(error)}.", code="invalid-document") from None
