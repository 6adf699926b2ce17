"""A run's model as a plain PyTorch module that needs no Penstock.

`plain` is that module, and `module_specs` describes a model in its words. `exported` writes the folder: the files of
`plain` joined to one, the weights as safetensors, the description, and programs of torch.export and ONNX.
"""
