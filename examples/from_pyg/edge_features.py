"""GATv2 that reads features of edges: `python examples/from_pyg/edge_features.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import signals
from torch.nn import functional
from torch_geometric.nn import GATv2Conv


class Net(torch.nn.Module):
    """Two layers of attention."""

    def __init__(self, inputs, outputs, edge_dim, hidden=16):
        super().__init__()
        self.first = GATv2Conv(inputs, hidden, heads=2, edge_dim=edge_dim)
        self.second = GATv2Conv(2 * hidden, outputs, edge_dim=edge_dim)

    def forward(self, x, edge_index, edge_attr):
        """Outputs of all rows."""
        return self.second(self.first(x, edge_index, edge_attr).relu(), edge_index, edge_attr)


def loaders(which, data):
    """Batches of training and of test vertices."""
    if which == "pyg":
        from torch_geometric.loader import NeighborLoader

        train = NeighborLoader(data, [10, 10], input_nodes=data.train_mask, batch_size=128, shuffle=True)
        test = NeighborLoader(data, [10, 10], input_nodes=data.test_mask, batch_size=128)
    else:
        import penstock as ps

        train = ps.loader(data, data.train_mask, fanouts=[10, 10], batch_size=128, shuffle=True)
        test = ps.loader(data, data.test_mask, fanouts=[10, 10], batch_size=128)
    return train, test


def main(which="penstock", epochs=5, **sizes):
    """The test accuracy."""
    torch.manual_seed(0)
    data = signals(**sizes)
    train, test = loaders(which, data)
    model = Net(data.num_features, 3, data.edge_attr.shape[1])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in train:
            out = model(batch.x, batch.edge_index, batch.edge_attr)[: batch.batch_size]
            loss = functional.cross_entropy(out, batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = 0
    with torch.no_grad():
        for batch in test:
            out = model(batch.x, batch.edge_index, batch.edge_attr).argmax(1)
            right += int((out == batch.y)[: batch.batch_size].sum())
    return right / int(data.test_mask.sum())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"accuracy {main(parser.parse_args().loader):.4f}")
