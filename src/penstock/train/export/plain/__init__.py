"""The plain PyTorch module that an exported model is, in files of one idea each.

These files import torch and each other, and nothing else of Penstock. `plain_source` joins them to the one file that an
exported folder has. In the order in which they build on each other: `edge_lists`, `layers`, `attention`,
`typed_layers`, `layer_ends`, `heads`, `parts`, `models`, `loading`.
"""
