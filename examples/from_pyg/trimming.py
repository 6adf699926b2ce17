"""A layer computes only what the next one reads: `python examples/from_pyg/trimming.py --loader pyg|penstock`."""

import argparse

import torch
from made_data import communities
from torch.nn import functional
from torch_geometric.nn import SAGEConv
from torch_geometric.utils import trim_to_layer


class HierarchicalSAGE(torch.nn.Module):
    """Layers that leave out the vertices and edges of hops that are not needed any more."""

    def __init__(self, inputs, hidden, outputs, layers=3):
        super().__init__()
        widths = [inputs, *[hidden] * (layers - 1), outputs]
        self.convs = torch.nn.ModuleList(map(SAGEConv, widths, widths[1:]))

    def forward(self, x, edge_index, num_sampled_nodes, num_sampled_edges):
        """Outputs of the seeds, and of few rows more."""
        for number, conv in enumerate(self.convs):
            x, edge_index, _ = trim_to_layer(number, num_sampled_nodes, num_sampled_edges, x, edge_index)
            x = conv(x, edge_index)
            x = x if number == len(self.convs) - 1 else x.relu()
        return x


def loaders(which, data):
    """Batches of training and of test vertices."""
    if which == "pyg":
        from torch_geometric.loader import NeighborLoader

        train = NeighborLoader(data, [8, 4, 4], input_nodes=data.train_mask, batch_size=128, shuffle=True)
        test = NeighborLoader(data, [8, 4, 4], input_nodes=data.test_mask, batch_size=128)
    else:
        import penstock as ps

        train = ps.loader(data, data.train_mask, fanouts=[8, 4, 4], batch_size=128, shuffle=True)
        test = ps.loader(data, data.test_mask, fanouts=[8, 4, 4], batch_size=128)
    return train, test


def main(which="penstock", epochs=4, **sizes):
    """The test accuracy."""
    torch.manual_seed(0)
    data = communities(**sizes)
    train, test = loaders(which, data)
    model = HierarchicalSAGE(data.num_features, 64, 5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(epochs):
        for batch in train:
            out = model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
            loss = functional.cross_entropy(out[: batch.batch_size], batch.y[: batch.batch_size])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    right = 0
    with torch.no_grad():
        for batch in test:
            out = model(batch.x, batch.edge_index, batch.num_sampled_nodes, batch.num_sampled_edges)
            right += int((out[: batch.batch_size].argmax(1) == batch.y[: batch.batch_size]).sum())
    return right / int(data.test_mask.sum())


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"accuracy {main(parser.parse_args().loader):.4f}")
