"""A run's model as a plain PyTorch module that needs no Penstock.

`plain_model` is that module, whose text is copied; `module_specs` describes a model in its words; `safetensors_file`
writes weights; `programs` makes programs of torch.export and ONNX.
"""
