"""Link prediction on edges that `RandomLinkSplit` chose: `python examples/from_pyg/links.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import communities
from torch.nn import functional
from torch_geometric.nn import GraphSAGE
from torch_geometric.transforms import RandomLinkSplit


def loaders(which, train, val):
    """Batches of training edges with drawn negatives, and of validation edges with those of the split."""
    if which == "pyg":
        from torch_geometric.loader import LinkNeighborLoader

        edges = train.edge_label_index
        first = LinkNeighborLoader(
            train, [10, 5], edge_label_index=edges, neg_sampling_ratio=1.0, batch_size=256, shuffle=True
        )
        second = LinkNeighborLoader(
            val, [10, 5], edge_label_index=val.edge_label_index, edge_label=val.edge_label, batch_size=256
        )
    else:
        import penstock as ps

        how = {"task": "link-prediction", "fanouts": [10, 5], "batch_size": 256}
        first = ps.loader(train, negatives_per_edge=1, shuffle=True, **how)
        second = ps.loader(val, **how)
    return first, second


def main(which="penstock", epochs=2, **sizes):
    """The area under the ROC curve of the validation edges."""
    torch.manual_seed(0)
    split = RandomLinkSplit(0.05, 0.1, is_undirected=True, add_negative_train_samples=False)
    train, val, _ = split(communities(**sizes))
    first, second = loaders(which, train, val)
    model = GraphSAGE(train.num_features, 64, 2, 64)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)

    def scores(batch):
        h = model(batch.x, batch.edge_index)
        return (h[batch.edge_label_index[0]] * h[batch.edge_label_index[1]]).sum(1)

    for _ in range(epochs):
        for batch in first:
            loss = functional.binary_cross_entropy_with_logits(scores(batch), batch.edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        found = torch.cat([scores(batch) for batch in second])
    true = val.edge_label == 1
    return (found[true][:, None] > found[~true]).float().mean().item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"AUC {main(parser.parse_args().loader):.4f}")
