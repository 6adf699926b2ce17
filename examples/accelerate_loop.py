"""A PyG module trained by Hugging Face Accelerate over `ps.loader`, on as many processes as it was launched with.

accelerate launch examples/accelerate_loop.py GRAPH
"""

import argparse

import torch
from accelerate import Accelerator
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import penstock as ps


def main(graph, epochs=10, hidden=64, fanouts=(10, 5), batch_size=256, cpu=False):
    """Train, and return the test accuracy."""
    accelerator = Accelerator(cpu=cpu)
    graph = ps.load(graph)
    model = GraphSAGE(graph.x.shape[1], hidden, len(fanouts), int(graph.y.max()) + 1)
    model, optimiser = accelerator.prepare(model, torch.optim.Adam(model.parameters(), lr=0.01))
    # Every process gets its share of each batch, and as many batches as the others.
    rank, world = accelerator.process_index, accelerator.num_processes
    train = ps.loader(graph, "train", fanouts=fanouts, batch_size=batch_size, rank=rank, world=world, device="cpu")
    for _ in range(epochs):
        for batch in train:
            batch = batch.to(accelerator.device)
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            accelerator.backward(functional.cross_entropy(out, batch.y[: batch.batch_size]))
            optimiser.step()
            optimiser.zero_grad()
    rows = torch.from_numpy(graph.split("test"))
    out = ps.infer(graph, accelerator.unwrap_model(model), device="cpu")
    return (out[rows].argmax(1) == torch.from_numpy(graph.y)[rows]).float().mean().item()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("graph", help="a graph folder, an .npz archive or the name of a built-in data set")
    print(f"test accuracy {main(arguments.parse_args().graph):.4f}")
