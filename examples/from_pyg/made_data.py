"""Small graphs made on the spot, so that the examples beside this file run without a download."""

import torch
from torch_geometric.data import Data, HeteroData


def communities(nodes=1500, classes=5, degree=6, seed=0):
    """Vertices that mostly know their own kind, with noisy features, labels and masks."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (nodes,), generator=rng)
    index = _alike(y, y, nodes * degree, 0.9, rng)
    x = torch.nn.functional.one_hot(y, classes).float() + 1.5 * torch.randn(nodes, classes, generator=rng)
    part = torch.rand(nodes, generator=rng)
    return Data(x=x, edge_index=torch.cat([index, index.flip(0)], 1).unique(dim=1), y=y,
                train_mask=part < 0.6, val_mask=(part >= 0.6) & (part < 0.8), test_mask=part >= 0.8)  # fmt: skip


def papers(count=1200, authors=900, classes=4, seed=0):
    """Papers that cite and are written by their own kind; authors have a field of their own, with noise."""
    rng = torch.Generator().manual_seed(seed)
    y, kind = (torch.randint(0, classes, (n,), generator=rng) for n in (count, authors))
    data = HeteroData()
    for name, labels in (("paper", y), ("author", kind)):
        noise = 1.5 * torch.randn(len(labels), classes, generator=rng)
        data[name].x = torch.nn.functional.one_hot(labels, classes).float() + noise
    part = torch.rand(count, generator=rng)
    data["paper"].y, data["paper"].train_mask, data["paper"].test_mask = y, part < 0.6, part >= 0.8
    data["paper", "cites", "paper"].edge_index = _alike(y, y, 6 * count, 0.9, rng)
    writes = _alike(kind, y, 4 * count, 0.9, rng)
    data["author", "writes", "paper"].edge_index = writes
    data["paper", "rev_writes", "author"].edge_index = writes.flip(0)
    return data


def ratings(users=800, movies=400, each=25, width=6, seed=0):
    """Ratings from 1 to 5 that follow from hidden tastes; users and movies have noisy features of these."""
    rng = torch.Generator().manual_seed(seed)
    data = HeteroData()
    tastes = {name: torch.randn(n, width, generator=rng) for name, n in (("user", users), ("movie", movies))}
    for name, taste in tastes.items():
        data[name].x = taste + 0.3 * torch.randn(taste.shape, generator=rng)
    index = torch.stack([torch.randint(0, n, (users * each,), generator=rng) for n in (users, movies)]).unique(dim=1)
    liked = (tastes["user"][index[0]] * tastes["movie"][index[1]]).sum(1) / width**0.5
    data["user", "rates", "movie"].edge_index = index
    data["user", "rates", "movie"].edge_label = (3 + 1.2 * liked).round().clamp(1, 5)
    return data


def signals(nodes=2500, degree=10, classes=3, seed=0):
    """Vertices whose class only the features of their edges give away: each edge says which of its ends to trust."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (nodes,), generator=rng)
    index = torch.randint(0, nodes, (2, nodes * degree), generator=rng).unique(dim=1)
    same = y[index[0]] == y[index[1]]
    x = torch.nn.functional.one_hot(y, classes).float() + 1.2 * torch.randn(nodes, classes, generator=rng)
    attr = torch.stack([same.float(), torch.rand(index.shape[1], generator=rng)], 1)
    part = torch.rand(nodes, generator=rng)
    return Data(x=x, edge_index=index, edge_attr=attr, y=y, train_mask=part < 0.6, test_mask=part >= 0.8)


def streets(side=15):
    """Triples of three relations between the corners of a square grid: east, north, and both."""
    corners = torch.arange(side * side).view(side, side)
    steps = [(corners[:, :-1], corners[:, 1:]), (corners[:-1], corners[1:]), (corners[:-1, :-1], corners[1:, 1:])]
    index = torch.cat([torch.stack([a.flatten(), b.flatten()]) for a, b in steps], 1)
    relations = torch.cat([torch.full((a.numel(),), number) for number, (a, _) in enumerate(steps)])
    return Data(edge_index=index, edge_type=relations, num_nodes=side * side)


def _alike(left, right, count, share, rng):
    """[2, count] pairs of which a share has the same label at both ends."""
    index = torch.stack([torch.randint(0, len(y), (4 * count,), generator=rng) for y in (left, right)])
    same = left[index[0]] == right[index[1]]
    kept = torch.where(same, share, 1 - share) > torch.rand(4 * count, generator=rng)
    return index[:, kept][:, :count]
