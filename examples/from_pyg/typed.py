"""A model made heterogeneous by PyG's `to_hetero`: `python examples/from_pyg/typed.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import papers
from torch.nn import functional
from torch_geometric.nn import SAGEConv, to_hetero


class GNN(torch.nn.Module):
    """Two layers for one type, which `to_hetero` copies for each."""

    def __init__(self, hidden, out):
        super().__init__()
        self.first = SAGEConv((-1, -1), hidden)
        self.second = SAGEConv((-1, -1), out)

    def forward(self, x, edge_index):
        """Outputs of all rows."""
        return self.second(self.first(x, edge_index).relu(), edge_index)


def loaders(which, data):
    """Batches of training and of test papers."""
    fanouts = {kind: [8, 4] for kind in data.edge_types}
    if which == "pyg":
        from torch_geometric.loader import NeighborLoader

        train = NeighborLoader(data, fanouts, ("paper", data["paper"].train_mask), batch_size=128, shuffle=True)
        test = NeighborLoader(data, fanouts, ("paper", data["paper"].test_mask), batch_size=128)
    else:
        import penstock as ps

        train = ps.loader(data, ("paper", data["paper"].train_mask), fanouts=fanouts, batch_size=128, shuffle=True)
        test = ps.loader(data, ("paper", data["paper"].test_mask), fanouts=fanouts, batch_size=128)
    return train, test


def main(which="penstock", epochs=4, **sizes):
    """The test accuracy."""
    torch.manual_seed(0)
    data = papers(**sizes)
    train, test = loaders(which, data)
    model = to_hetero(GNN(32, 4), data.metadata())
    optimizer = None
    for _ in range(epochs):
        for batch in train:
            out = model(batch.x_dict, batch.edge_index_dict)["paper"]
            size = batch["paper"].batch_size
            loss = functional.cross_entropy(out[:size], batch["paper"].y[:size])
            if optimizer is None:
                # Lazy layers know their widths now.
                optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = 0
    with torch.no_grad():
        for batch in test:
            size = batch["paper"].batch_size
            out = model(batch.x_dict, batch.edge_index_dict)["paper"][:size].argmax(1)
            right += int((out == batch["paper"].y[:size]).sum())
    return right / int(data["paper"].test_mask.sum())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"accuracy {main(parser.parse_args().loader):.4f}")
