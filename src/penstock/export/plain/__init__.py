"""The plain PyTorch module that an exported model is, in files of one idea each.

These files import torch and each other, and nothing else of Penstock. `train.export.exported` joins them to the one
file of source that an exported folder has. In the order in which they build on each other: `edge_lists`, `layers`,
`attention`, `typed_layers`, `layer_ends`, `heads`, `parts`, `models`, `loading`.
"""
