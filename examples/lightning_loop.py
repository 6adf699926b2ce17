"""A PyG module trained by Lightning over `ps.loader`.

python examples/lightning_loop.py GRAPH
"""

import argparse

import lightning
import torch
from torch.nn import functional
from torch_geometric.nn import GraphSAGE

import penstock as ps


class Classifier(lightning.LightningModule):
    """A PyG model, its loss and its optimiser."""

    def __init__(self, width, classes, hidden=64, layers=2):
        super().__init__()
        self.model = GraphSAGE(width, hidden, layers, classes)

    def forward(self, batch):
        """Outputs of the batch's seeds."""
        return self.model(batch.x, batch.edge_index)[: batch.batch_size]

    def training_step(self, batch, number):
        """The loss of a batch."""
        loss = functional.cross_entropy(self(batch), batch.y[: batch.batch_size])
        self.log("loss", loss, batch_size=batch.batch_size)
        return loss

    def validation_step(self, batch, number):
        """The accuracy of a batch."""
        right = self(batch).argmax(1) == batch.y[: batch.batch_size]
        self.log("accuracy", right.float().mean(), batch_size=batch.batch_size)

    def configure_optimizers(self):
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main(graph, epochs=10, fanouts=(10, 5), batch_size=256, **trainer):
    """Train, and return the validation accuracy."""
    graph = ps.load(graph)
    train = ps.loader(graph, "train", fanouts=fanouts, batch_size=batch_size, device="cpu")
    val = ps.loader(graph, "val", fanouts=fanouts, batch_size=batch_size, device="cpu")
    model = Classifier(graph.x.shape[1], int(graph.y.max()) + 1)
    fitting = lightning.Trainer(max_epochs=epochs, logger=False, enable_progress_bar=False, **trainer)
    fitting.fit(model, train, val)
    return float(fitting.callback_metrics["accuracy"])


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("graph", help="a graph folder, an .npz archive or the name of a built-in data set")
    print(f"validation accuracy {main(arguments.parse_args().graph):.4f}")
