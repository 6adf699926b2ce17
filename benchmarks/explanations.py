"""Whether explanations find planted motifs: BA-shapes, beside PyG's own GNNExplainer on the same weights.

BA-shapes as published: a Barabási-Albert graph of 300 vertices (5 edges each), 80 houses of 5 vertices, each joined to
it by one edge, and one random edge for every ten vertices; classes are 0 for the base and 1 to 3 for a house's
roof, middle and bottom. A GCN of three layers learns the classes; each explainer then masks the neighbourhoods of
vertices in houses, and the AUC says how well its masks tell edges of houses from the others within three hops.

    python benchmarks/explanations.py --seeds 5 --vertices 20
"""

import argparse
import json
import math
import time

import numpy as np
import torch

import penstock as ps
from penstock.explain.explainer import Neighbourhood, explain_output
from penstock.explain.mask_optimiser import MaskOptions
from penstock.graph.csr import build_lists
from penstock.nn import GCN
from penstock.sampling import ALL, BatchKey, NeighbourSampler

BASE, ATTACHED, HOUSES, LAYERS, WIDTH = 300, 5, 80, 3, 10
HOUSE = [(0, 1), (0, 2), (1, 2), (1, 3), (2, 4), (3, 4)]
HOUSE_CLASSES = [1, 2, 2, 3, 3]
KIND = ("node", "to", "node")


def ba_shapes(seed):
    """The graph, both directions of every edge, and the set of edges that belong to houses."""
    rng = np.random.default_rng(seed)
    pairs, ends = [], list(range(ATTACHED))
    for vertex in range(ATTACHED, BASE):
        # Ends of earlier edges, each once: vertices in proportion to their degrees.
        chosen = set()
        while len(chosen) < ATTACHED:
            chosen.add(int(rng.choice(ends)))
        pairs += [(vertex, other) for other in chosen]
        ends += [*chosen, *([vertex] * ATTACHED)]
    labels, planted = [0] * BASE, set()
    for house in range(HOUSES):
        first = BASE + 5 * house
        inside = [(first + a, first + b) for a, b in HOUSE]
        planted |= {*inside, *((b, a) for a, b in inside)}
        pairs += [*inside, (first, int(rng.integers(BASE)))]
        labels += HOUSE_CLASSES
    count = len(labels)
    pairs += [tuple(rng.choice(count, 2, replace=False).tolist()) for _ in range(count // 10)]
    both = np.array(sorted({*pairs, *((b, a) for a, b in pairs)}))
    indptr, indices, _ = build_lists(both[:, 0], both[:, 1], count, count, False)
    order = rng.permutation(count)
    splits = {"train": np.sort(order[: count * 8 // 10]), "test": np.sort(order[count * 8 // 10 :])}
    nodes = ps.NodeSet(count, {"x": np.ones((count, WIDTH), np.float32), "y": np.array(labels)}, splits)
    return ps.Graph({"node": nodes}, {KIND: ps.EdgeSet(indptr, indices)}, "ba-shapes"), planted


def trained_model(graph, seed, steps):
    """A GCN that was trained on the whole graph, and its accuracy on the vertices it did not learn from."""
    sampler = NeighbourSampler(graph, [ALL] * LAYERS, totals=True)
    blocks = sampler.sample(np.arange(graph.num_nodes), BatchKey(0, 0, 0)).blocks
    x, y = torch.from_numpy(graph.x), torch.from_numpy(graph.y)
    torch.manual_seed(seed)
    model = GCN(WIDTH, 4, hidden=20, layers=LAYERS, dropout=0.0)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
    train, test = (torch.from_numpy(graph.split(name)) for name in ("train", "test"))
    for _ in range(steps):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(blocks, x)[train], y[train]).backward()
        optimiser.step()
    model.eval()
    with torch.no_grad():
        right = (model(blocks, x).argmax(1) == y)[test]
    return model, float(right.float().mean())


def pyg_model(model):
    """PyG's GCN with the same weights."""
    from torch_geometric.nn import models

    theirs = models.GCN(WIDTH, 20, LAYERS, 4)
    for layer, convolution in zip(theirs.convs, model.convolutions, strict=True):
        layer.lin.weight.data, layer.bias.data = convolution.linear.weight.data, convolution.bias.data
    return theirs.eval()


def explain_ours(model, graph, sampler, vertex, steps, lr, seed):
    """Masks by edge (source, destination)."""
    around = Neighbourhood(sampler.sample(np.array([vertex]), BatchKey(0, 0, 0)), [KIND])
    ids = around.batch.vertices["node"]
    x = {"node": torch.from_numpy(graph.x[ids])}
    found = explain_output(model, around, x, ["node"], MaskOptions(steps, lr), seed)
    (edges,) = around.relations
    names = zip(ids[edges.sources].tolist(), ids[edges.destinations].tolist(), strict=True)
    return dict(zip(names, found.edges.tolist(), strict=True))


def explain_pyg(model, graph, edge_index, vertex, steps, lr):
    """The same by PyG's explainer on the whole graph, as its own example does."""
    from torch_geometric.explain import Explainer, GNNExplainer

    explainer = Explainer(
        model,
        GNNExplainer(epochs=steps, lr=lr),
        explanation_type="model",
        node_mask_type="common_attributes",
        edge_mask_type="object",
        model_config={"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"},
    )
    found = explainer(torch.from_numpy(graph.x), edge_index, index=vertex)
    return dict(zip(map(tuple, edge_index.t().tolist()), found.edge_mask.tolist(), strict=True))


def auc(scores, planted):
    """The probability that an edge of a house has a larger mask than another; ties count half."""
    scores, planted = np.asarray(scores), np.asarray(planted, bool)
    _, place, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[place]
    yes, no = planted.sum(), (~planted).sum()
    return float((ranks[planted].sum() - yes * (yes + 1) / 2) / (yes * no))


def compare(seed, vertices, steps, lr, training):
    """AUC and seconds of both explainers on one graph and one model."""
    graph, planted = ba_shapes(seed)
    model, accuracy = trained_model(graph, seed, training)
    theirs, edge_index = pyg_model(model), torch.from_numpy(graph.edges[KIND].edge_index().astype(np.int64))
    sampler = NeighbourSampler(graph, [ALL] * LAYERS, totals=True)
    houses = np.random.default_rng(seed).choice(np.arange(BASE, graph.num_nodes), vertices, replace=False)
    found = {"ours": ([], 0.0), "pyg": ([], 0.0)}
    truth = []
    torch.manual_seed(seed)
    for vertex in map(int, houses):
        start = time.perf_counter()
        ours = explain_ours(model, graph, sampler, vertex, steps, lr, seed)
        middle = time.perf_counter()
        pyg = explain_pyg(theirs, graph, edge_index, vertex, steps, lr)
        end = time.perf_counter()
        truth += [edge in planted for edge in ours]
        found["ours"] = found["ours"][0] + list(ours.values()), found["ours"][1] + middle - start
        found["pyg"] = found["pyg"][0] + [pyg[edge] for edge in ours], found["pyg"][1] + end - middle
    result = {name: {"auc": auc(masks, truth), "seconds": seconds} for name, (masks, seconds) in found.items()}
    return {"seed": seed, "accuracy": accuracy, "edges": len(truth), **result}


def interval(values):
    """Mean and half the width of its 95 % confidence interval (Student's t)."""
    from scipy.stats import t

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan
    return mean, float(t.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values)))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--vertices", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--training", type=int, default=2000)
    options = parser.parse_args()
    rows = []
    for seed in range(options.seeds):
        rows.append(compare(seed, options.vertices, options.steps, options.lr, options.training))
        print(json.dumps(rows[-1]), flush=True)
    for name in ("ours", "pyg"):
        mean, half = interval([row[name]["auc"] for row in rows])
        seconds = np.mean([row[name]["seconds"] for row in rows]) / options.vertices
        print(f"{name}: AUC {mean:.3f} ± {half:.3f}, {seconds:.2f} s a vertex")
    mean, half = interval([row["ours"]["auc"] - row["pyg"]["auc"] for row in rows])
    print(f"difference of AUC: {mean:+.3f} ± {half:.3f}")


if __name__ == "__main__":
    main()
