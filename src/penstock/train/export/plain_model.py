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
import math
import struct
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

_TYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
}


def load(folder: str | Path | None = None) -> Any:
    """The model of a folder with config.json and model.safetensors, in evaluation mode."""
    place = Path(__file__).parent if folder is None else Path(folder)
    model = build(json.loads((place / "config.json").read_text())["model"])
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


class Edges(NamedTuple):
    """The edges of one relation; `rows` are the destinations' number."""

    source: Tensor
    target: Tensor
    rows: Any
    weight: Tensor | None = None
    attr: Tensor | None = None

    def add(self, values: Tensor) -> Tensor:
        """[rows, ...]: sums of the edges' values at their destinations."""
        return values.new_zeros((self.rows, *values.shape[1:])).scatter_add(0, self._places(values), values)

    def largest(self, values: Tensor) -> Tensor:
        """[rows, ...]: the largest of the edges' values at their destinations; minus infinity without edges."""
        lowest = values.new_full((self.rows, *values.shape[1:]), -math.inf)
        return lowest.scatter_reduce(0, self._places(values), values, "amax")

    def weighed(self, values: Tensor) -> Tensor:
        """Values times the edges' weights."""
        if self.weight is None:
            return values
        return values * self.weight.to(values.dtype).view(-1, *[1] * (values.dim() - 1))

    def combine(self, x: Tensor, reduce: str) -> Tensor:
        """[rows, width]: mean, sum or maximum of the neighbours' rows; zeros without neighbours."""
        if reduce == "max":
            found = self.largest(x[self.source])
            return torch.where(torch.isinf(found), 0.0, found)
        total = self.add(self.weighed(x[self.source]))
        return total / _not_zero(self.totals(x)) if reduce == "mean" else total

    def totals(self, like: Tensor) -> Tensor:
        """[rows, 1]: numbers of neighbours, or the sums of their weights."""
        return self.add(self.weighed(like.new_ones((self.source.shape[0], 1))))

    def attend(self, scores: Tensor, values: Tensor) -> Tensor:
        """[rows, heads * size] of values [edges, heads * size]: means by the softmax of scores [edges, heads]."""
        if self.weight is not None:
            scores = scores.masked_fill((self.weight == 0)[:, None], -math.inf)
        most = self.largest(scores)
        parts = self.weighed(torch.exp(scores - torch.where(torch.isinf(most), 0.0, most)[self.target]))
        shares = parts / _not_zero(self.add(parts))[self.target]
        heads = values.view(values.shape[0], scores.shape[1], -1)
        return self.add((shares[:, :, None] * heads).reshape(values.shape))

    def looped(self) -> "Edges":
        """With each destination as one more neighbour of itself, in place of the self loops that there are.

        A self loop carries the mean of what its vertex's other edges carry.
        """
        own = torch.arange(self.rows, device=self.source.device)
        others = (self.source != self.target).to(torch.float32)
        weight = others if self.weight is None else others * self.weight
        attr = None
        if self.attr is not None:
            counted = self._replace(weight=weight)
            mean = counted.add(counted.weighed(self.attr)) / _not_zero(counted.totals(self.attr))
            attr = torch.cat([self.attr, mean])
        source, target = torch.cat([self.source, own]), torch.cat([self.target, own])
        return Edges(source, target, self.rows, torch.cat([weight, torch.ones_like(own, dtype=weight.dtype)]), attr)

    def _places(self, values: Tensor) -> Tensor:
        return self.target.view(-1, *[1] * (values.dim() - 1)).expand_as(values)


def _not_zero(values: Tensor) -> Tensor:
    return torch.where(values == 0, 1.0, values)


class Sage(nn.Module):
    """GraphSAGE."""

    def __init__(self, width_in: int, width_out: int, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce
        self.neighbours, self.own = nn.Linear(width_in, width_out), nn.Linear(width_in, width_out, bias=False)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        """Rows after the layer."""
        result: Tensor = self.neighbours(edges.combine(x, self.reduce)) + self.own(x)
        return result


class Gcn(nn.Module):
    """GCN, normalised by degrees."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out, bias=False)
        self.bias = nn.Parameter(torch.zeros(width_out))

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        """Rows after the layer."""
        x = self.linear(x)
        root = (edges.totals(x) + 1).rsqrt()
        return root * edges.combine(root * x, "sum") + root * root * x + self.bias


class Gin(nn.Module):
    """GIN; with `edge_width` GINE, whose messages are rectified sums with what edges carry."""

    def __init__(self, width_in: int, width_out: int, edge_width: int = 0) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(width_in, width_out), nn.ReLU(), nn.Linear(width_out, width_out))
        self.eps = nn.Parameter(torch.zeros(1))
        self.edge = nn.Linear(edge_width, width_in) if edge_width else None

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        """Rows after the layer."""
        if self.edge is None:
            messages = edges.combine(x, "sum")
        else:
            messages = edges.add(edges.weighed(torch.relu(x[edges.source] + self.edge(edges.attr))))
        result: Tensor = self.mlp(messages + (1 + self.eps) * x)
        return result


class Gat(nn.Module):
    """Graph attention, the first form or the second (`v2`)."""

    def __init__(
        self,
        width_in: int,
        size: int,
        heads: int,
        concat: bool,
        v2: bool,
        slope: float,
        self_loop: bool,
        two_sided: bool,
        bias: bool,
        edge_width: int = 0,
    ) -> None:
        super().__init__()
        self.heads, self.size, self.concat, self.slope, self.self_loop = heads, size, concat, slope, self_loop
        width = heads * size
        self.source = nn.Linear(width_in, width, bias=v2 and bias)
        self.target = nn.Linear(width_in, width, bias=v2 and bias) if two_sided else None
        self.score_source = nn.Parameter(torch.zeros(heads, size))
        self.score_target = None if v2 else nn.Parameter(torch.zeros(heads, size))
        self.edge = nn.Linear(edge_width, width, bias=False) if edge_width else None
        self.bias = nn.Parameter(torch.zeros(width if concat else size)) if bias else None

    def forward(self, edges: Edges, x: Tensor, own: Tensor | None = None) -> Tensor:
        """Rows after the layer; `own` are the destinations', where these are of another type."""
        edges = edges.looped() if self.self_loop else edges
        values = self.source(x)
        targets = values if self.target is None else self.target(x if own is None else own)
        if self.score_target is None:
            sums = values[edges.source] + targets[edges.target]
            if self.edge is not None:
                sums = sums + self.edge(edges.attr)
            scores = self._scores(functional.leaky_relu(sums, self.slope), self.score_source)
        else:
            of_source, of_target = self._scores(values, self.score_source), self._scores(targets, self.score_target)
            scores = functional.leaky_relu(of_source[edges.source] + of_target[edges.target], self.slope)
        result = edges.attend(scores, values[edges.source])
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        return result if self.bias is None else result + self.bias

    def _scores(self, rows: Tensor, direction: Tensor) -> Tensor:
        return (rows.view(-1, self.heads, self.size) * direction).sum(dim=2)


class Transformer(nn.Module):
    """A transformer's attention over neighbours."""

    def __init__(self, width_in: int, size: int, heads: int, concat: bool, edge_width: int = 0) -> None:
        super().__init__()
        self.heads, self.size, self.concat = heads, size, concat
        self.key, self.query, self.value = (nn.Linear(width_in, heads * size) for _ in range(3))
        self.edge = nn.Linear(edge_width, heads * size, bias=False) if edge_width else None
        self.own = nn.Linear(width_in, heads * size if concat else size)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        """Rows after the layer."""
        keys, values = self.key(x)[edges.source], self.value(x)[edges.source]
        if self.edge is not None:
            carried = self.edge(edges.attr)
            keys, values = keys + carried, values + carried
        asked = self.query(x)[edges.target]
        scores = (asked * keys).view(-1, self.heads, self.size).sum(dim=2) / math.sqrt(self.size)
        result = edges.attend(scores, values)
        if not self.concat:
            result = result.view(-1, self.heads, self.size).mean(dim=1)
        mine: Tensor = self.own(x)
        return result + mine


class Dense(nn.Module):
    """A layer that looks at no neighbour."""

    def __init__(self, width_in: int, width_out: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width_in, width_out)

    def forward(self, edges: Edges, x: Tensor) -> Tensor:
        """Rows after the layer."""
        result: Tensor = self.linear(x)
        return result


Kind = tuple[str, str, str]
Rows = dict[str, Tensor]


class _Typed(nn.Module):
    """What layers on several types share: which types they give, and which relations they have weights for."""

    def __init__(self, types: list[str], kinds: list[list[str]]) -> None:
        super().__init__()
        self.types, self.kinds = types, [_kind(kind) for kind in kinds]

    def present(self, edges: dict[Kind, Edges]) -> list[tuple[int, Kind, Edges]]:
        """Those that have edges here, with their numbers."""
        return [(number, kind, edges[kind]) for number, kind in enumerate(self.kinds) if kind in edges]


class Rgcn(_Typed):
    """R-GCN: a weight for each relation, or mixtures of `bases`."""

    def __init__(
        self, width_in: int, width_out: int, types: list[str], kinds: list[list[str]], bases: int, reduce: str
    ) -> None:
        super().__init__(types, kinds)
        self.reduce = reduce
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)
        self.weight = nn.Parameter(torch.zeros(bases or len(kinds), width_in, width_out))
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases)) if bases else None

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        weights = self.weight if self.mixture is None else torch.einsum("rb,bio->rio", self.mixture, self.weight)
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + some.combine(x[kind[0]], self.reduce) @ weights[number]
        return result


class OneHotRgcn(_Typed):
    """R-GCN's first layer on vertices without features, whose rows of all weights are their embeddings."""

    def __init__(self, width: int, types: list[str], kinds: list[list[str]], bases: int, reduce: str) -> None:
        super().__init__(types, kinds)
        self.reduce, self.width, self.bases = reduce, width, bases
        self.own = nn.ModuleList(_Bias(width) for _ in types)
        self.mixture = nn.Parameter(torch.zeros(len(kinds), bases))

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {
            name: own(x[name][:, : self.width]) for name, own in zip(self.types, self.own, strict=True) if name in x
        }
        for number, kind, some in self.present(edges):
            rows = x[kind[0]][:, self.width :].reshape(-1, self.bases, self.width)
            mixed = (rows * self.mixture[number][:, None]).sum(dim=1)
            result[kind[2]] = result[kind[2]] + some.combine(mixed, self.reduce)
        return result


class _Bias(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, rows: Tensor) -> Tensor:
        return rows + self.bias


class TypedGat(_Typed):
    """Attention within each relation, summed over relations, beside the vertex itself."""

    def __init__(
        self, width_in: int, width_out: int, types: list[str], kinds: list[list[str]], attention: dict[str, Any]
    ) -> None:
        super().__init__(types, kinds)
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)
        self.relations = nn.ModuleList(build(attention) for _ in kinds)

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        result = {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}
        for number, kind, some in self.present(edges):
            result[kind[2]] = result[kind[2]] + self.relations[number](some, x[kind[0]], x[kind[2]])
        return result


class TypedDense(_Typed):
    """A layer that looks at no neighbour, for each type."""

    def __init__(self, width_in: int, width_out: int, types: list[str]) -> None:
        super().__init__(types, [])
        self.own = nn.ModuleList(nn.Linear(width_in, width_out) for _ in types)

    def forward(self, edges: dict[Kind, Edges], x: Rows) -> Rows:
        """Rows after the layer, by type."""
        return {name: own(x[name]) for name, own in zip(self.types, self.own, strict=True) if name in x}


class LayerEnd(nn.Module):
    """What stands behind a layer: residual, norm, activation."""

    def __init__(self, width_in: int, width_out: int, residual: bool, norm: str, activation: str, bare: bool) -> None:
        super().__init__()
        self.bare, self.activation = bare, activation
        self.residual: nn.Module | None = None
        if residual:
            self.residual = nn.Identity() if width_in == width_out else nn.Linear(width_in, width_out, bias=False)
        norms: dict[str, Any] = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}
        self.norm: nn.Module | None = None if bare or norm == "none" else norms[norm](width_out)

    def forward(self, y: Tensor, own: Tensor) -> Tensor:
        """The layer's rows, of the convolution's and of the layer's input."""
        if self.residual is not None:
            y = y + self.residual(own)
        if self.bare:
            return y
        y = y if self.norm is None else self.norm(y)
        return torch.relu(y) if self.activation == "relu" else functional.elu(y)


class Join(nn.Module):
    """All layers' outputs to the final one."""

    def __init__(self, jump: str, width_in: int, width_out: int) -> None:
        super().__init__()
        self.jump = jump
        self.head = None if jump == "none" else nn.Linear(width_in, width_out)

    def forward(self, outputs: list[Tensor]) -> Tensor:
        """The joined rows."""
        if self.head is None:
            return outputs[-1]
        rows = torch.cat(outputs, dim=1) if self.jump == "cat" else torch.stack(outputs).amax(dim=0)
        result: Tensor = self.head(rows)
        return result


class _Model(nn.Module):
    """What whole models share: embeddings of vertices without features, and the head."""

    def __init__(
        self, embedded: dict[str, list[int]], head: dict[str, Any] | None, scaled: bool, weighted: bool
    ) -> None:
        super().__init__()
        self.embedded, self.scaled, self.weighted = list(embedded), scaled, weighted
        self.embeddings = nn.ParameterList(torch.zeros(shape) for shape in embedded.values())
        self.head = None if head is None else build(head)

    def rows_of(self, name: str, x: Tensor | None) -> Tensor:
        """What stands for a type's features in the first layer."""
        if name in self.embedded:
            rows: Tensor = self.embeddings[self.embedded.index(name)]
            return rows
        if x is None:
            raise ValueError(f"The model needs x of {name!r}.")
        return x / _not_zero(x.sum(1, keepdim=True)) if self.scaled else x

    def edges_of(self, index: Tensor, rows: Any, weight: Tensor | None, attr: Tensor | None) -> Edges:
        """The edges of a relation, whose destinations are `rows` many."""
        if self.weighted and weight is None:
            raise ValueError("The model was trained with weights of edges: give edge_weight.")
        return Edges(index[0], index[1], rows, weight if self.weighted else None, attr)


class PlainModel(_Model):
    """A graph with one node type and one relation: tensors in, a tensor out."""

    def __init__(
        self, layers: list[dict[str, Any]], ends: list[dict[str, Any]], joined: dict[str, Any], **shared: Any
    ) -> None:
        super().__init__(**shared)
        self.convolutions, self.ends = nn.ModuleList(map(build, layers)), nn.ModuleList(map(build, ends))
        self.joined = build(joined)

    def forward(
        self,
        x: Tensor | None,
        edge_index: Tensor,
        edge_weight: Tensor | None = None,
        edge_attr: Tensor | None = None,
    ) -> Tensor:
        """[vertices, width]."""
        x = self.rows_of("", x)
        edges, outputs = self.edges_of(edge_index, x.shape[0], edge_weight, edge_attr), []
        for convolution, end in zip(self.convolutions, self.ends, strict=True):
            x = end(convolution(edges, x), x)
            outputs.append(x)
        result: Tensor = self.joined(outputs)
        return result


class TypedModel(_Model):
    """A graph with several types: dictionaries in and out. `alone`: it has one relation, and takes tensors too."""

    def __init__(
        self,
        types: list[str],
        projections: list[list[int]],
        layers: list[dict[str, Any]],
        ends: list[list[dict[str, Any]]],
        followed: list[list[list[str]]],
        joined: dict[str, Any],
        alone: list[str] | None,
        **shared: Any,
    ) -> None:
        super().__init__(**shared)
        self.types, self.alone = types, None if alone is None else _kind(alone)
        self.followed = [[_kind(kind) for kind in kinds] for kinds in followed]
        self.projections = nn.ModuleList(nn.Linear(width_in, width_out) for width_in, width_out in projections)
        self.convolutions = nn.ModuleList(map(build, layers))
        self.ends = nn.ModuleList(nn.ModuleList(map(build, some)) for some in ends)
        self.joined = build(joined)

    def forward(self, x: Any = None, edge_index: Any = None, edge_weight: Any = None, edge_attr: Any = None) -> Any:
        """By type, [vertices, width]; a tensor where tensors were given."""
        if self.alone is not None and not isinstance(edge_index, dict):
            weight = None if edge_weight is None else {self.alone: edge_weight}
            (found,) = self.forward({self.types[0]: x}, {self.alone: edge_index}, weight, None).values()
            return found
        given, weights = x or {}, edge_weight or {}
        rows = {name: self.rows_of(name, given.get(name)) for name in self.types}
        counts = {name: some.shape[0] for name, some in rows.items()}
        edges = {
            kind: self.edges_of(index, counts[kind[2]], weights.get(kind), None) for kind, index in edge_index.items()
        }
        if self.projections:
            rows = {name: project(rows[name]) for name, project in zip(self.types, self.projections, strict=True)}
        outputs = []
        every: list[Any] = list(self.ends)
        for convolution, ends, kinds in zip(self.convolutions, every, self.followed, strict=True):
            found = convolution({kind: edges[kind] for kind in kinds if kind in edges}, rows)
            rows = {name: end(y, rows[name]) for (name, y), end in zip(found.items(), ends, strict=True)}
            outputs.append(rows)
        return {name: self.joined([some[name] for some in outputs]) for name in outputs[-1]}


class EmbeddingModel(_Model):
    """A model without layers: its rows are the embeddings, or the features as they are."""

    def __init__(self, types: list[str], **shared: Any) -> None:
        super().__init__(**shared)
        self.types = types

    def forward(self, x: Any = None, *_: Any) -> Any:
        """By type, [vertices, width]; a tensor where there is one type without a name."""
        if self.types == [""]:
            return self.rows_of("", x)
        return {name: self.rows_of(name, (x or {}).get(name)) for name in self.types}


class Dot(nn.Module):
    """Scores a pair by the product of its rows."""

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]."""
        return (source * target).sum(-1)


class PairMlp(nn.Module):
    """Scores a pair by a small network on the product of its rows."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        """[pairs]."""
        result: Tensor = self.layers(source * target).squeeze(-1)
        return result


class EdgeClassifier(nn.Module):
    """Classes of edges, from both ends."""

    def __init__(self, width: int, hidden: int, width_out: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4 * width, hidden), nn.ReLU(), nn.Linear(hidden, width_out))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """[edges, classes]."""
        ends = torch.cat([source, target, (source - target).abs(), source * target], dim=-1)
        result: Tensor = self.layers(ends)
        return result


class RelationScorer(nn.Module):
    """DistMult, ComplEx, TransE or RotatE. Rows of `vectors` behind the relations' are those of their inverses."""

    def __init__(self, form: str, rows: int, columns: int, margin: float = 0.0, distance: int = 1) -> None:
        super().__init__()
        self.form, self.margin, self.distance = form, margin, distance
        self.vectors = nn.Parameter(torch.zeros(rows, columns))

    def forward(self, source: Tensor, target: Tensor, relation: Tensor | None = None) -> Tensor:
        """[triples]: how well a head and a tail fit a relation."""
        vectors = self.vectors[0] if relation is None else self.vectors[relation]
        if self.form == "distmult":
            return (source * vectors * target).sum(-1)
        if self.form == "transe":
            apart: Tensor = torch.linalg.vector_norm(source + vectors - target, ord=self.distance, dim=-1)
            return self.margin - apart
        if self.form == "complex":
            return (_product(source, vectors) * target).sum(-1)
        real, imaginary = (_product(source, torch.cat([vectors.cos(), vectors.sin()], -1)) - target).chunk(2, -1)
        return self.margin - (real.square() + imaginary.square() + 1e-30).sqrt().sum(-1)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Of complex numbers, real parts before imaginary ones."""
    (x, y), (u, v) = a.chunk(2, -1), b.chunk(2, -1)
    return torch.cat([x * u - y * v, x * v + y * u], -1)


def _kind(names: list[str]) -> Kind:
    source, relation, target = names
    return source, relation, target


PARTS: dict[str, type[nn.Module]] = {
    each.__name__: each
    for each in (
        *(Sage, Gcn, Gin, Gat, Transformer, Dense, Rgcn, OneHotRgcn, TypedGat, TypedDense, LayerEnd, Join),
        *(PlainModel, TypedModel, EmbeddingModel, Dot, PairMlp, EdgeClassifier, RelationScorer),
    )
}


def build(spec: dict[str, Any]) -> Any:
    """A module of its description: `part` names it, the rest are its arguments."""
    return PARTS[spec["part"]](**{name: value for name, value in spec.items() if name != "part"})
