"""A graph neural network as a plain PyTorch module: this file needs torch and nothing else.

    from model import load
    model = load()                             # the folder of this file; in evaluation mode
    out = model(x, edge_index)                 # rows of vertices, and [2, edges]: sources above destinations

A graph with several types takes dictionaries, `model(x_dict, edge_index_dict)`, with node types and (source, relation,
destination) as keys, and gives a dictionary. `edge_weight` [edges] and `edge_attr` [edges, width], or dictionaries of
them, are needed where the model was trained with them. Vertices without features have embeddings in the model: leave
their x out. Models of edges and links have `model.head(rows of sources, rows of destinations)`, and of knowledge graphs
`model.head(rows of heads, rows of tails, relation numbers)`. config.json says what the model was trained on.
"""

import json
import struct
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from penstock.export.plain.models import EmbeddingModel, PlainModel, TypedModel
from penstock.export.plain.parts import build

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
}


_MODELS: dict[str, type[nn.Module]] = {each.__name__: each for each in (PlainModel, TypedModel, EmbeddingModel)}


def load(folder: str | Path | None = None) -> Any:
    """The model of a folder with config.json and model.safetensors, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = build(json.loads((place / "config.json").read_text())["model"], _MODELS)
    model.load_state_dict(read_safetensors(place / "model.safetensors"))
    return model.eval()


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file: a length, a JSON header of that length, and the numbers."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    found = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        first, last = about["data_offsets"]
        kind = _TYPES[about["dtype"]]
        if first == last:
            found[name] = torch.empty(about["shape"], dtype=kind)
        else:
            count = (last - first) // kind.itemsize
            found[name] = torch.frombuffer(data, dtype=kind, count=count, offset=8 + length + first)
            found[name] = found[name].reshape(about["shape"]).clone()
    return found
