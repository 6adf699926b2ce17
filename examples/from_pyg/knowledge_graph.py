"""TransE on triples: `python examples/from_pyg/knowledge_graph.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import streets
from torch_geometric.data import HeteroData
from torch_geometric.nn import TransE


def triples(which, data, model):
    """Batches of (head, relation, tail)."""
    if which == "pyg":
        return model.loader(data.edge_index[0], data.edge_type, data.edge_index[1], batch_size=100, shuffle=True)
    import penstock as ps

    graph = HeteroData()
    graph["corner"].num_nodes = data.num_nodes
    for number in range(3):
        graph["corner", f"r{number}", "corner"].edge_index = data.edge_index[:, data.edge_type == number]
    return ps.loader(
        graph, task="knowledge-graph-completion", sampler="seeds", batch_size=100,
        transform=lambda batch: (batch.head_index, batch.rel_type, batch.tail_index),
    )  # fmt: skip


def main(which="penstock", epochs=40, **sizes):
    """The share of training triples whose tail is among the ten nearest."""
    torch.manual_seed(0)
    data = streets(**sizes)
    model = TransE(data.num_nodes, 3, hidden_channels=32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    batches = triples(which, data, model)
    for _ in range(epochs):
        for head_index, rel_type, tail_index in batches:
            loss = model.loss(head_index, rel_type, tail_index)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    _, _, hits = model.test(
        data.edge_index[0, ::10], data.edge_type[::10], data.edge_index[1, ::10], batch_size=1000, log=False
    )
    return hits


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"hits@10 {main(parser.parse_args().loader):.4f}")
