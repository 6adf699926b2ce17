"""The optimiser of masks by itself: what it finds, that it repeats, and that it touches nothing else."""

import pytest
import torch

from penstock.explain import Mask, MaskOptions, optimise_masks, target_of
from refusals import refused

FAST = MaskOptions(steps=200, lr=0.1)


def planted(weights, rows):
    """A linear model whose logits depend on the columns that have a weight, and its forward with both masks."""

    def forward(masks):
        x = rows * masks["columns"]
        return ((x * masks["vertices"][:, None]).sum(0) @ weights)[None]

    return forward


@pytest.fixture
def model():
    generator = torch.Generator().manual_seed(3)
    rows = torch.rand(5, 6, generator=generator) + 0.5
    rows[3:] = 0
    weights = torch.zeros(6, 2)
    weights[1, 0] = 4.0
    return planted(weights, rows)


SHAPES = {"columns": Mask((6,), size=0.1, entropy=0.1, size_of="mean"), "vertices": Mask((5,), size=0.05)}


def target(model):
    whole = {name: torch.ones(mask.shape) for name, mask in SHAPES.items()}
    return target_of(model(whole), "classes")


def test_masks_keep_what_the_output_depends_on(model):
    found = optimise_masks(model, target(model), SHAPES, FAST, seed=1)
    columns, vertices = found.values["columns"], found.values["vertices"]
    assert columns.argmax() == 1 and columns[1] > 0.9
    # What has no influence is exactly zero: columns without a weight, vertices without features.
    assert columns[[0, 2, 3, 4, 5]].tolist() == [0.0] * 5
    assert vertices[3:].tolist() == [0.0, 0.0]
    assert found.losses[-1] < found.losses[0] and len(found.losses) == 200


def test_one_seed_gives_the_same_masks_and_no_generator_is_touched(model):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first, again, other = (optimise_masks(model, target(model), SHAPES, FAST, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.losses == again.losses != other.losses
    assert all(torch.equal(first.values[name], again.values[name]) for name in SHAPES)
    assert not torch.equal(first.values["vertices"], other.values["vertices"])


def test_weights_of_the_model_get_no_gradient_and_masks_are_found_without_recording():
    weights = torch.nn.Parameter(torch.ones(4, 2) * torch.tensor([1.0, 0.0]))
    with torch.no_grad():
        found = optimise_masks(
            lambda masks: masks["edges"][None] @ weights, torch.tensor([[1.0, 0.0]]), {"edges": Mask((4,))}, FAST, 0
        )
    assert weights.grad is None
    assert not found.values["edges"].requires_grad


def test_it_ends_early_when_the_loss_has_settled(model):
    options = MaskOptions(steps=2000, lr=0.1, explain_loss=0.01)
    found = optimise_masks(model, target(model), SHAPES, options, seed=1)
    assert 10 < len(found.losses) < 2000
    # With a larger weight of size, the mask is smaller.
    heavy = {name: Mask(mask.shape, 2.0, mask.entropy, mask.size_of) for name, mask in SHAPES.items()}
    small = optimise_masks(model, target(model), heavy, options, seed=1)
    assert small.values["vertices"].sum() < found.values["vertices"].sum()


@pytest.mark.parametrize("output", ["labels", "numbers"])
def test_other_kinds_of_output(output):
    weights = torch.tensor([[3.0, -3.0], [0.0, 0.0], [2.0, 2.0]])
    logits = torch.ones(1, 3) @ weights
    options = MaskOptions(steps=200, lr=0.1, output=output)
    found = optimise_masks(
        lambda masks: masks["edges"][None] @ weights,
        target_of(logits, output),
        {"edges": Mask((3,), size=0.01, entropy=0.01)},
        options,
        0,
    )
    values = found.values["edges"]
    assert values[1] == 0 and values[0] > 0.8 and values[2] > 0.8


def test_an_output_that_depends_on_no_mask():
    found = optimise_masks(
        lambda masks: torch.zeros(1, 2), torch.tensor([[0.5, 0.5]]), {"edges": Mask((3,))}, MaskOptions(steps=3), 0
    )
    assert found.values["edges"].tolist() == [0.0, 0.0, 0.0]


def test_refusals(model):
    with refused("option-missing mask"):
        optimise_masks(model, target(model), {}, FAST, 0)
    for options in (MaskOptions(steps=0), MaskOptions(lr=0.0), MaskOptions(explain_loss=-1.0)):
        with refused("invalid-value steps"):
            optimise_masks(model, target(model), SHAPES, options, 0)
    with refused("shape-mismatch (1, 2) (2, 2)"):
        optimise_masks(model, torch.ones(2, 2), SHAPES, FAST, 0)
    with refused("not-finite nan features"):
        optimise_masks(lambda masks: masks["edges"][None] * torch.nan, torch.ones(1, 2), {"edges": Mask((2,))}, FAST, 0)


def test_steps_are_those_of_torchs_adam_on_the_whole_objective(model):
    wanted, options = target(model), MaskOptions(steps=30, lr=0.1)
    found = optimise_masks(model, wanted, SHAPES, options, seed=4)
    active = {name: values != 0 for name, values in found.values.items()}
    start = optimise_masks(model, wanted, SHAPES, MaskOptions(steps=1, lr=1e-12), seed=4).values
    # Values without influence start anywhere: they change nothing.
    raw = {name: torch.logit(start[name].double().clamp(0.4, 0.6)).requires_grad_() for name in SHAPES}
    adam, losses = torch.optim.Adam(raw.values(), lr=0.1), []
    for _ in range(30):
        values = {name: each.sigmoid() for name, each in raw.items()}
        loss = torch.nn.functional.cross_entropy(model({k: v.float() for k, v in values.items()}), wanted).double()
        for name, mask in SHAPES.items():
            kept = values[name][active[name]]
            size = kept.sum() if mask.size_of == "sum" else kept.mean()
            entropy = torch.special.entr(torch.stack([kept, 1 - kept])).sum(0).mean()
            loss = loss + mask.size * size + mask.entropy * entropy
        adam.zero_grad()
        loss.backward()
        losses.append(float(loss.detach()))
        adam.step()
    torch.testing.assert_close(torch.tensor(found.losses), torch.tensor(losses), rtol=1e-4, atol=1e-5)
    for name, kept in active.items():
        torch.testing.assert_close(found.values[name][kept].double(), raw[name].sigmoid()[kept], rtol=1e-3, atol=1e-4)
