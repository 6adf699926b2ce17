"""GraphSAGE trained by a loop of one's own over `ps.loader`, and tested by exact inference.

python examples/bare_loop.py GRAPH
"""

import argparse

import torch
from torch.nn import functional

import penstock as ps


def main(graph, epochs=10, hidden=64, fanouts=(10, 5), batch_size=256):
    """Train, and return the test accuracy."""
    graph = ps.load(graph)
    model = ps.nn.GraphSAGE(graph, hidden=hidden, layers=len(fanouts))
    optimiser = torch.optim.Adam(model.parameters(), lr=0.01)
    train = ps.loader(graph, "train", fanouts=fanouts, batch_size=batch_size)
    for epoch in range(epochs):
        for batch in train:
            loss = functional.cross_entropy(model(batch.blocks, batch.x), batch.y[: batch.batch_size])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        print(f"epoch {epoch + 1}: loss {loss.item():.4f}")
    rows = torch.from_numpy(graph.split("test"))
    right = ps.infer(graph, model)[rows].argmax(1) == torch.from_numpy(graph.y)[rows]
    return right.float().mean().item()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("graph", help="a graph folder, an .npz archive or the name of a built-in data set")
    print(f"test accuracy {main(arguments.parse_args().graph):.4f}")
