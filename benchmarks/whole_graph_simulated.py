"""How long does a step on the whole graph take on 2 to 64 machines like the source's, beside BNS-GCN and NeutronStar?

Simulated, with the shapes of the source's graphs and its hardware (`whole_graph_cases.py`). Of each graph a small one
with as many edges for each vertex is made and cut, and rows and edges are multiplied: shares of remote rows are those
of the small graph, which has smaller parts and so a larger share than the real one. Numbers of vertices say nothing of
communities, so chunks cut like random.

Ours: `exchange: bins` with 4, 8 or 16 bins, whichever is predicted to be faster, on balanced METIS parts; sums of rows
travel where they are fewer. `layer`: whole layers on the same parts, sums too. BNS-GCN: whole layers (p = 1) on METIS
parts with as many vertices. NeutronStar: whole layers on chunks. `replicate` and `NeutronStar replicate`: rows are
computed again or fetched, by cost; that needs inputs two hops away in the GPU's memory, which is not counted, and which
papers and twitter do not fit. `inputs`: BNS-GCN sends inputs of remote vertices in every step, as systems do that do
not keep them. All but `ms` are multiples: `bound` of the lower bound of our step, the others of our step.

Links have 10 Gb/s, or with `--ratios` such a rate that the busiest worker of `layer` sends for so many times as long as
the busiest one computes.
Run: python benchmarks/whole_graph_simulated.py [--graphs products,twitter] [--models sage] [--workers 64]
[--edges 1500000] [--ratios 0.5,1,2] [--json]
"""

import argparse
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from penstock.cost.profile import Profile
from penstock.graph.folder import Graph
from penstock.graph.generate import make_graph, recipe_named
from products_graph import show
from whole_graph_cases import LINK, MODELS, Cuts, Exchange, predicted, profile_of, volume

REFINED, METIS, CHUNK = "metis+balanced", "metis:vertices", "chunk"
FEW = 16
"""Workers up to which several numbers of bins are simulated."""


@dataclass(frozen=True)
class Shape:
    """One of the source's graphs."""

    rows: float
    entries: float
    """Of the neighbour lists."""
    features: int
    classes: int
    recipe: str
    changes: tuple[tuple[str, Any], ...] = ()
    """Of the recipe's edges."""


SHAPES = {
    "products": Shape(2.449e6, 123.7e6, 100, 47, "synthetic-products"),
    "amazon": Shape(1.57e6, 264e6, 200, 107, "synthetic-products"),
    "papers": Shape(111.06e6, 1.616e9, 128, 172, "synthetic-papers"),
    "twitter": Shape(41.65e6, 2.405e9, 128, 100, "synthetic-papers", (("degree_exponent", 2.1), ("hub_bias", 3.0))),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", default=",".join(SHAPES))
    parser.add_argument("--models", default=",".join(model.name for model in MODELS))
    parser.add_argument("--workers", default="2,4,8,16")
    parser.add_argument("--edges", type=int, default=1_500_000)
    parser.add_argument("--ratios", type=lambda text: [float(part) for part in text.split(",")], default=[])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    for about, *case in cases(args):
        for ratio, link in links(*case, args.ratios).items():
            rows.append(about | {"ratio": ratio} | compared(*case, link))
    show("a step on the whole graph, simulated", rows, args.json)


def cases(args: argparse.Namespace) -> Iterator[tuple[dict[str, Any], Cuts, int, Profile, bool]]:
    """Every graph with every number of workers and every model that was asked for: what it is called, its cuts, the
    workers, the profile, and whether sums may travel instead of rows."""
    for name in args.graphs.split(","):
        shape = SHAPES[name]
        with tempfile.TemporaryDirectory() as scratch:
            cuts = Cuts(small_graph(shape, args.edges, Path(scratch) / "graph"), shape.rows, shape.entries)
            for workers in map(int, args.workers.split(",")):
                for model in (each for each in MODELS if each.name in args.models.split(",")):
                    about = {"graph": name, "model": model.name, "workers": workers}
                    yield about, cuts, workers, profile_of(model, shape.features, shape.classes), not model.heads


def small_graph(shape: Shape, entries: int, folder: Path) -> Graph:
    """A graph with as many entries for each vertex, and so many in all; features are not needed."""
    recipe = recipe_named(shape.recipe)
    (edge,) = recipe.edges
    counts = round(entries * shape.rows / shape.entries) / recipe.nodes["node"].count
    small = recipe.scaled(counts)
    nodes = {"node": replace(small.nodes["node"], features=1)}
    changed = replace(edge, count=entries, **dict(shape.changes))
    return make_graph(replace(small, nodes=nodes, edges=(changed,)), folder)


def links(cuts: Cuts, workers: int, profile: Profile, sums: bool, ratios: list[float]) -> dict[str, float]:
    """Rates of links, bytes/s, by the ratio of communication to compute that they give."""
    if not ratios:
        return {"10 Gb/s": LINK}
    compute, sent = volume(cuts.counts(REFINED, workers, 1, eager=False, sums=sums).layers, profile)
    return {f"{ratio:g}": sent / (ratio * compute) for ratio in ratios}


def compared(cuts: Cuts, workers: int, profile: Profile, sums: bool, link: float) -> dict[str, Any]:
    """Milliseconds of ours and its bound, and what others take, as multiples."""
    ways = [Exchange("bins", "both", bins, "hermod", sums=sums) for bins in ((4, 8, 16) if workers <= FEW else (4,))]
    tried = [predicted(cuts, REFINED, workers, profile, way, link) for way in ways]
    ours = min(tried, key=lambda each: each.iteration_s)
    layer = Exchange("layer", "none", 1, "fair")

    def times(method: str, how: Exchange) -> float:
        return predicted(cuts, method, workers, profile, how, link).iteration_s / ours.iteration_s

    return {
        "ms": ours.iteration_s * 1e3,
        "bound": ours.iteration_s / ours.lower_bound_s,
        "layer": times(REFINED, replace(layer, sums=sums)),
        "BNS-GCN": times(METIS, layer),
        "NeutronStar": times(CHUNK, layer),
        "replicate": times(REFINED, Exchange("replicate", "both", 4, "hermod", sums=sums)),
        "NeutronStar replicate": times(CHUNK, Exchange("replicate", "none", 1, "fair")),
        "BNS-GCN inputs": times(METIS, replace(layer, send_inputs=True)),
    }


if __name__ == "__main__":
    main()
