"""Embeddings learned from edges alone: `python examples/from_pyg/unsupervised.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import communities
from torch.nn import functional
from torch_geometric.nn import GraphSAGE


def loaders(which, data):
    """Batches of all edges with drawn negatives."""
    if which == "pyg":
        from torch_geometric.loader import LinkNeighborLoader

        return LinkNeighborLoader(data, [10, 10], neg_sampling_ratio=1.0, batch_size=256, shuffle=True)
    import penstock as ps

    return ps.loader(data, task="link-prediction", fanouts=[10, 10], batch_size=256)


def main(which="penstock", epochs=1, **sizes):
    """The accuracy of a linear model on what was learned without labels."""
    torch.manual_seed(0)
    data = communities(**sizes)
    model = GraphSAGE(data.num_features, 32, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    batches = loaders(which, data)
    for _ in range(epochs):
        for batch in batches:
            h = model(batch.x, batch.edge_index)
            scores = (h[batch.edge_label_index[0]] * h[batch.edge_label_index[1]]).sum(1)
            loss = functional.binary_cross_entropy_with_logits(scores, batch.edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        h = model(data.x, data.edge_index)
    linear = torch.nn.Linear(h.shape[1], 5)
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.05)
    for _ in range(200):
        loss = functional.cross_entropy(linear(h[data.train_mask]), data.y[data.train_mask])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (linear(h).argmax(1) == data.y)[data.test_mask].float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"accuracy {main(parser.parse_args().loader):.4f}")
