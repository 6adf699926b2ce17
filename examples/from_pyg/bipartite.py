"""Ratings of movies, split by `RandomLinkSplit`: `python examples/from_pyg/bipartite.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import ratings
from torch.nn import functional
from torch_geometric.nn import SAGEConv, to_hetero
from torch_geometric.transforms import RandomLinkSplit, ToUndirected

RATES = ("user", "rates", "movie")


class GNN(torch.nn.Module):
    """One layer for one type, which `to_hetero` copies for each."""

    def __init__(self, hidden):
        super().__init__()
        self.conv = SAGEConv((-1, -1), hidden)

    def forward(self, x, edge_index):
        """Rows of all vertices."""
        return self.conv(x, edge_index)


class Ratings(torch.nn.Module):
    """A rating from the rows of its ends and their products."""

    def __init__(self, metadata, hidden=32):
        super().__init__()
        self.gnn = to_hetero(GNN(hidden), metadata)
        self.out = torch.nn.Sequential(torch.nn.Linear(3 * hidden, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, 1))

    def forward(self, batch):
        """Ratings of the batch's pairs."""
        h = self.gnn(batch.x_dict, batch.edge_index_dict)
        users, movies = batch[RATES].edge_label_index
        left, right = h["user"][users], h["movie"][movies]
        return self.out(torch.cat([left, right, left * right], 1)).squeeze(1)


def loaders(which, train, val):
    """Batches of training and of validation ratings."""
    if which == "pyg":
        from torch_geometric.loader import LinkNeighborLoader

        edges, labels = (RATES, train[RATES].edge_label_index), train[RATES].edge_label
        first = LinkNeighborLoader(train, [10], edge_label_index=edges, edge_label=labels, batch_size=256, shuffle=True)
        edges, labels = (RATES, val[RATES].edge_label_index), val[RATES].edge_label
        second = LinkNeighborLoader(val, [10], edge_label_index=edges, edge_label=labels, batch_size=256)
    else:
        import penstock as ps

        first = ps.loader(train, task="link-prediction", fanouts=[10], batch_size=256, shuffle=True)
        second = ps.loader(val, task="link-prediction", fanouts=[10], batch_size=256)
    return first, second


def main(which="penstock", epochs=4, **sizes):
    """The share of the validation ratings' variance that is explained."""
    torch.manual_seed(0)
    data = ToUndirected()(ratings(**sizes))
    del data["movie", "rev_rates", "user"].edge_label
    split = RandomLinkSplit(
        0.1, 0.0, neg_sampling_ratio=0.0, edge_types=[RATES], rev_edge_types=[("movie", "rev_rates", "user")]
    )
    train, val, _ = split(data)
    first, second = loaders(which, train, val)
    model = Ratings(data.metadata())
    with torch.no_grad():
        model(next(iter(second)))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for _ in range(epochs):
        for batch in first:
            loss = functional.mse_loss(model(batch), batch[RATES].edge_label)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    with torch.no_grad():
        found = torch.cat([model(batch) for batch in second])
    label = val[RATES].edge_label
    return 1 - (functional.mse_loss(found, label) / label.var()).item()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"variance explained {main(parser.parse_args().loader):.4f}")
