"""A run's model as a plain PyTorch module that needs no Penstock.

`plain` is that module, and `plain_source` joins its files to one; `module_specs` describes a model in its words;
`safetensors_file` writes weights; `programs` makes programs of torch.export and ONNX.
"""
