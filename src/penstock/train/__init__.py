"""The loops: mini-batch training, evaluation, checkpoints, and what they measure."""
