"""A Lightning module over sampled batches: `python examples/from_pyg/with_lightning.py --loader pyg|penstock`."""

import argparse

import lightning
import torch
from made_data import communities
from torch.nn import functional
from torch_geometric.nn import GraphSAGE


class Classifier(lightning.LightningModule):
    """A model of PyG's, its loss and its optimiser."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.model = GraphSAGE(inputs, 64, 2, outputs)

    def training_step(self, batch, number):
        """The loss of a batch."""
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return functional.cross_entropy(out, batch.y[: batch.batch_size])

    def validation_step(self, batch, number):
        """The accuracy of a batch."""
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        right = (out.argmax(1) == batch.y[: batch.batch_size]).float().mean()
        self.log("accuracy", right, batch_size=batch.batch_size)

    def configure_optimizers(self):
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=0.01)


def loaders(which, data):
    """Batches of training and of validation vertices."""
    if which == "pyg":
        from torch_geometric.loader import NeighborLoader

        train = NeighborLoader(data, [10, 5], input_nodes=data.train_mask, batch_size=128, shuffle=True)
        val = NeighborLoader(data, [10, 5], input_nodes=data.val_mask, batch_size=128)
    else:
        import penstock as ps

        train = ps.loader(data, data.train_mask, fanouts=[10, 5], batch_size=128, shuffle=True)
        val = ps.loader(data, data.val_mask, fanouts=[10, 5], batch_size=128)
    return train, val


def main(which="penstock", epochs=5, **sizes):
    """The validation accuracy."""
    torch.manual_seed(0)
    data = communities(**sizes)
    train, val = loaders(which, data)
    trainer = lightning.Trainer(
        max_epochs=epochs, logger=False, enable_progress_bar=False, enable_checkpointing=False,
        enable_model_summary=False, accelerator="cpu",
    )  # fmt: skip
    trainer.fit(Classifier(data.num_features, 5), train, val)
    return float(trainer.callback_metrics["accuracy"])


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--loader", choices=["pyg", "penstock"], default="penstock")
    print(f"accuracy {main(parser.parse_args().loader):.4f}")
