"""A job's memory is predicted before it runs: for every model and sampler, for a GPU and for the host."""

import json

import numpy as np
import pytest
import torch
from torch import nn

import penstock as ps
from in_process import command
from knowledge_graph import TRIPLES, family_graph
from penstock.api import memory_of_job
from penstock.formatting import parsed_bytes
from penstock.pipeline.schedule import START, Schedule
from penstock.sampling.sampler_table import SAMPLERS
from penstock.trace.allocations import UntraceableError
from penstock.trace.allocators import heap_peak
from penstock.train.build import make_session
from penstock.train.device.traced import TracedMemory
from penstock.train.job import make_job
from penstock.train.memory import host_forecast, process_memory
from penstock.train.memory.forecast import bar_of, fitting_forecast, forecast, forecast_fields, size_text
from penstock.train.tasks import triples
from penstock.train.trace.fake_session import LargestBatch, enlarged, largest_batch, load_of
from refusals import refused
from training_graphs import carrying_graph, community_graph, labelled_edges, typed_graph

MB = 1 << 20
SMALL = {"fanouts": [5, 3], "hidden": 32, "batch_size": 64, "epochs": 3, "clusters": 10}


@pytest.fixture(autouse=True)
def stated_process(monkeypatch):
    """What a process takes by itself is not measured in tests: that starts two of them."""
    monkeypatch.setattr(process_memory, "_known", lambda *_: process_memory.ProcessMemory(resident=400 * MB, files=0))


def forecast_of(graph, device="cuda", **fields):
    module = fields.pop("module_object", None)
    return forecast(make_job({**SMALL, **fields}), graph, device=device, module=module)


@pytest.mark.covering(1)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
# The others are for models without layers, and for clusters.
@pytest.mark.parametrize("sampler", sorted(set(SAMPLERS) - {"seeds", "explained"}))
def test_every_sampler_is_traced(sampler, device):
    more = {"fanouts": [40, 20]} if sampler in ("fastgcn", "ladies") else {"layers": 2}
    more |= {"batch_size": 4} if sampler == "cluster" else {}
    found = forecast_of(community_graph(600), device, sampler=sampler, **more)
    assert found.method == "traced", found.reason
    assert (found.device_allocated > 0) == (device == "cuda")
    assert found.device_reserved >= found.device_allocated
    assert found.host > 400 * MB and found.moment


@pytest.mark.covering(1)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "sage", "norm": "batch"},
        {"model": "gcn", "norm": "layer", "jump": "cat"},
        {"model": "gat", "heads": 2, "attention_dropout": 0.2},
        {"model": "gatv2", "heads": 2, "residual": True},
        {"model": "gin", "input_dropout": 0.3},
        {"model": "sage", "aggregate": "max"},
        {"model": "mlp"},
        {"model": "sage", "optimiser": "RMSprop", "clip": 1.0},
        {"model": "sage", "compute_type": "bfloat16"},
        {"model": "sage", "placement": {"features": "pinned"}},
        {"model": "sage", "placement": {"features": "host"}},
        {"model": "sage", "sample_on": "host"},
        {"model": "sage", "capture": False, "sample_threads": 2},
        {"task": "link-prediction"},
    ],
    ids=str,
)
def test_every_model_is_traced(fields, device):
    found = forecast_of(community_graph(600), device, **fields)
    assert found.method == "traced", found.reason
    assert sum(found.categories.values()) > 0


@pytest.mark.covering(1)
@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize(
    "fields",
    [
        {"model": "gcn", "edge_weight": "auto"},
        {"model": "gine", "edge_features": ["far"]},
        {"model": "gine", "edge_features": ["far"], "sampler": "whole", "layers": 2},
        {"model": "gatv2", "heads": 2, "edge_features": ["far"]},
        {"model": "transformer", "heads": 2, "attention_dropout": 0.2, "edge_features": ["edge_attr", "far"]},
    ],
    ids=str,
)
def test_what_edges_carry_is_traced(fields, device):
    found = forecast_of(carrying_graph(), device, **fields)
    assert found.method == "traced", found.reason
    assert found.host > 400 * MB


OFTEN = (("neighbour", "cpu"), ("whole", "cuda"))


@pytest.mark.parametrize(
    "model, sampler, device",
    [
        pytest.param(model, sampler, device, marks=() if (sampler, device) == OFTEN[number % 2] else pytest.mark.long)
        for number, model in enumerate(("rgcn", "gat", "sage", "hgt"))
        for sampler in ("neighbour", "whole")
        for device in ("cuda", "cpu")
    ],
)
def test_graphs_of_several_types_and_learned_rows_are_traced(model, sampler, device):
    found = forecast_of(typed_graph(), device, model=model, sampler=sampler, layers=2)
    assert found.method == "traced", found.reason


def test_launched_steps_on_batches_of_the_device_with_learned_rows_are_traced():
    found = forecast_of(typed_graph(), model="rgcn", layers=2, sample_on="device", capture=False)
    assert found.method == "traced" and "launched" in " ".join(found.why), found.reason
    # Forward and backward pass compute in two threads, and a matrix library keeps memory for each.
    assert found.categories["library workspace"] == 64 * MB


def test_tasks_on_edges_are_traced():
    found = forecast_of(labelled_edges(), label="kind", task="edge-classification")
    assert found.method == "traced", found.reason


class Plain(nn.Module):
    """A module of the user's own, in PyG's convention."""

    def __init__(self, inputs, outputs, hidden=16):
        super().__init__()
        self.first, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, outputs)

    def forward(self, x, edge_index):
        source, target = edge_index
        rows = self.first(x).relu()
        summed = torch.zeros_like(rows).index_add(0, target, rows.index_select(0, source))
        return self.last(summed)


class Asking(Plain):
    """Its shapes depend on numbers."""

    def forward(self, x, edge_index):
        kept = x[:, 0] > float(x.mean())
        return super().forward(x * kept[:, None], edge_index)


def test_ranking_held_out_triples_counts_where_it_is_done(monkeypatch):
    """Scores with every entity take more than the steps of a small model do."""
    graph = family_graph(1200)
    fields = {"task": "knowledge-graph-completion", "scorer": "transe", **TRIPLES}
    without, found = (forecast_of(graph, "cpu", evaluate_every=often, **fields) for often in (-1, 1))
    assert found.moment == "validation"
    # A block of scores of 480 held-out triples, the distances it is made of, and the block before it.
    scores = 3 * 4 * 1200 * 480
    assert scores < found.host - without.host < scores + 2 * MB
    monkeypatch.setattr(triples, "RANKED_BYTES", 4 * 1200 * 48)
    bounded = forecast_of(graph, "cpu", **fields)
    assert bounded.host - without.host < scores / 5


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_users_module_is_traced_and_one_that_asks_for_numbers_is_tried(device):
    graph = community_graph(600)
    found = forecast_of(graph, device, module_object=Plain(4, 4))
    assert found.method == "traced", found.reason
    tried = forecast_of(graph, device, module_object=Asking(4, 4))
    assert tried.method == "trial" and "cannot be traced" in tried.reason and "meta" in tried.reason.lower()


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_a_users_module_on_the_whole_graph_is_traced_and_one_that_asks_for_numbers_is_tried(device):
    graph, whole = community_graph(3000), {"sampler": "whole", "layers": 2}
    found, other, wider = (
        forecast_of(graph, device, module_object=Plain(4, 4, width), **whole, hidden=hidden)
        for width, hidden in ((64, 16), (64, 256), (256, 16))
    )
    assert found.method == "traced", found.reason
    assert (found.host, found.device_allocated) == (other.host, other.device_allocated), "its width is its own"
    assert wider.host + wider.device_reserved > found.host + found.device_reserved
    tried = forecast_of(graph, device, module_object=Asking(4, 4, 64), **whole)
    assert tried.method == "trial" and "cannot be traced" in tried.reason
    steps = (
        [each.categories["activations"] + each.categories.get("gradients", 0) for each in (found, tried)]
        if device == "cpu"
        else [1, 1]
    )
    assert 0.5 < steps[1] / steps[0] < 2


def test_more_of_a_job_takes_more():
    graph = community_graph(2000)
    sizes = [
        forecast_of(graph, **more).device_allocated
        for more in ({}, {"hidden": 256}, {"hidden": 256, "batch_size": 1024})
    ]
    assert sizes == sorted(sizes) and sizes[0] < sizes[-1]
    captured, launched = forecast_of(graph), forecast_of(graph, capture=False)
    assert captured.device_reserved > launched.device_reserved, "two slots, and pools of their own"


@pytest.mark.parametrize(
    ("epochs", "evaluate_every", "left"), [(1, 1, 0), (3, 1, 4), (3, 2, 2), (3, 5, 0), (3, 0, 0), (3, -1, 0)]
)
def test_no_batches_are_held_ahead_that_a_run_does_not_have(epochs, evaluate_every, left):
    from penstock.train.device.traced import _drop_behind, _left_at_validation

    job = make_job({"epochs": epochs, "evaluate_every": evaluate_every})
    assert _left_at_validation(job, LargestBatch(None, None, 1.0, [], 2 * epochs)) == left
    waiting, queued = list("ab"), list("cde")
    _drop_behind(left, waiting, queued)
    assert "".join(waiting + queued) == "abcde"[:left]
    _drop_behind(-1, waiting, queued)
    assert not waiting and not queued


@pytest.mark.parametrize("capture", [True, False])
def test_validations_lie_beside_batches_and_the_evaluation_at_the_end_does_not(capture):
    """A run without validations frees what its steps hold before it evaluates."""
    graph = community_graph(5_000)
    often, once, never = (forecast_of(graph, capture=capture, hidden=256, evaluate_every=every) for every in (1, 0, -1))
    assert often.moment.startswith("validation") and once.moment.startswith("validation")
    assert often.device_allocated > once.device_allocated > never.device_allocated
    assert often.categories["batches"] > once.categories["batches"]
    assert not never.moment.startswith("validation")


def test_weights_and_optimiser_state_are_counted_exactly():
    """Each parameter is rounded up to 512 bytes, and Adam keeps two moments and a count of steps beside it."""
    graph = community_graph(600)
    session = make_session(make_job({**SMALL, "device": "cpu"}), graph)
    rounded = [-(-4 * weight.numel() // 512) * 512 for weight in session.learned.parameters()]
    found = forecast_of(graph, capture=False)
    assert found.categories["weights"] == sum(rounded)
    assert found.categories["optimiser state"] == 2 * sum(rounded) + 512 * len(rounded)
    assert found.categories["features"] == -(-graph.nodes["node"].fields["x"].nbytes // 512) * 512


def test_a_step_on_the_host_takes_what_torch_allocates():
    """The traced tensors of a step are those of a real one, batch for batch."""
    from penstock.pipeline.stages import Loaded
    from penstock.trace.allocations import peak_of
    from penstock.train.device.host_trial import Noted
    from penstock.train.memory.host_forecast import _buffers, _carried
    from penstock.train.steps.one_by_one import LearnAlone, StaleWeights
    from penstock.train.trace.fake_session import traced_session

    for fields in ({"model": "sage"}, {"model": "gcn"}, {"model": "gin"}):
        session = make_session(make_job({**SMALL, **fields, "device": "cpu", "threads": 1}), community_graph(600))
        planned = next(Schedule(session.task.items, 64, 0).from_position())
        peaks = []
        batch = session.task.sample(planned)
        with traced_session(session, 1.0, False) as allocations:
            before = len(allocations.events)
            loaded = _carried(session, Loaded(planned, batch), _buffers(session, batch))
            first = {event.storage for event in allocations.events[:]}
            LearnAlone(session, StaleWeights(session.learned, 0))(loaded)
            del loaded
            peaks.append(peak_of([each for each in allocations.events[before:] if each.storage not in first]).bytes)
        loaded = Loaded(planned, session.task.sample(planned))
        session.inputs.carrier.gather(loaded.batch)
        session.task.label(loaded.batch)
        session.inputs.carrier.transfer(loaded.batch)
        with Noted() as noted:
            LearnAlone(session, StaleWeights(session.learned, 0))(loaded)
        peaks.append(peak_of(noted.events).bytes)
        # The names of rows for dropout are an array of the host, which only the real step shows as a tensor.
        assert peaks[0] == pytest.approx(peaks[1], rel=0.08), fields


def test_steps_on_the_host_are_traced_on_batches_of_different_sizes(monkeypatch):
    """Holes that the arrays of one batch leave are too small for those of a larger one, so that the heap grows."""
    seen = []

    def peak(events):
        seen.extend(events)
        return heap_peak(events)

    monkeypatch.setattr(host_forecast, "heap_peak", peak)
    forecast(make_job({**SMALL, "device": "cpu"}), community_graph(600))
    rows = {event.bytes for event in seen if event.moment.endswith("convolutions.0, addmm") and event.bytes > 0}
    assert len(rows) > 3, "outputs of the first layer"


def test_the_largest_batch_is_expected_beyond_those_drawn_and_within_the_graph():
    session = make_session(make_job({**SMALL, "device": "cpu"}), community_graph(600))
    schedule = Schedule(session.task.items, 64, 0)
    every = [
        load_of(session.task.sample(planned)) for planned, _ in zip(schedule.from_position(), range(40), strict=False)
    ]
    found = largest_batch(session, schedule, 40)
    expected = found.factor * load_of(found.batch)
    assert max(every) * 0.97 <= expected <= 1.1 * max(every)
    assert len(found.all_drawn) == 12 and "12 that were drawn" in found.how
    grown = enlarged(found.batch, 1.5)
    assert grown.blocks[-1].num_dst == found.batch.blocks[-1].num_dst, "as many seeds"
    assert grown.blocks[0].num_edges == round(1.5 * found.batch.blocks[0].num_edges)
    assert grown.blocks[0].indptr[-1] == grown.blocks[0].num_edges


def test_a_job_that_is_too_large_is_refused_with_what_would_fit():
    graph = community_graph(3000)
    job = make_job(
        {
            **SMALL,
            "hidden": 1024,
            "batch_size": 4096,
            "capture": False,
            "device": "cuda",
            "placement": {"features": "device"},
        }
    )
    whole = forecast(job, graph, device="cuda")
    # Less than all, and more than the smallest batches take.
    needed, room = whole.device_bytes, int(0.9 * whole.device_reserved / job.device_share)
    with refused("out-of-memory batch_size GB") as caught:
        fitting_forecast(job, graph, device_memory=whole.context + room)
    for remedy in caught.value.remedies:
        changed = job.model_copy(update=remedy.fields)
        found = fitting_forecast(changed, graph, device_memory=whole.context + room)
        assert found.device_bytes == remedy.device_bytes < needed
    assert fitting_forecast(job, graph, device_memory=2 * needed).device_bytes == needed


@pytest.mark.long
def test_a_whole_graph_that_is_too_large_is_refused_with_what_would_fit():
    graph = community_graph(12_000)
    fields = {"sampler": "whole", "layers": 3, "hidden": 4096, "epochs": 2, "bins": 1, "keep": "device"}
    memory = int(0.8 * forecast(make_job(fields), graph, device="cuda").device_bytes)
    with refused("out-of-memory GB") as error:
        fitting_forecast(make_job(fields), graph, device="cuda", device_memory=memory)
    assert error.value.remedies
    for remedy in error.value.remedies:
        changed = make_job({**fields, **remedy.fields})
        assert fitting_forecast(changed, graph, device="cuda", device_memory=memory).device_bytes == remedy.device_bytes


@pytest.mark.parametrize("capture", [True, False])
def test_one_of_several_gpus_has_a_share_of_the_features(capture):
    """And of every batch; as much of the features is missing as the others hold."""
    graph = community_graph(2000)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = np.zeros((2000, 2080), np.float32)
    fields = {**SMALL, "batch_size": 512, "device": "cuda", "capture": capture}
    whole = ps.memory(graph, "sage", **fields)
    of_four = ps.memory(graph, "sage", gpus=4, **fields)
    shared = ps.memory(graph, "sage", gpus=4, **fields, placement={"features": "sharded"})
    # torch's allocator leaves no rest of less than a megabyte.
    assert whole.categories["features"] == of_four.categories["features"] == 16 * MB > nodes.x.nbytes
    assert shared.categories["features"] == 4 * MB
    assert of_four.device_allocated - shared.device_allocated == 12 * MB
    assert of_four.device_allocated < whole.device_allocated and isinstance(of_four.run, str)


def test_features_that_do_not_fit_are_shared_without_being_asked():
    graph = community_graph(2000)
    (nodes,) = graph.nodes.values()
    nodes.fields["x"] = np.zeros((2000, 2080), np.float32)
    job = make_job({**SMALL, "model": "sage", "batch_size": 512, "device": "cuda"})
    whole, _ = memory_of_job(job, graph, gpus=4)
    room = whole.context + round((whole.device_reserved - 5 * MB) / job.device_share)
    found, _ = memory_of_job(job, graph, device_memory=room, gpus=4)
    assert found.categories["features"] == 4 * MB and any("on 4 GPUs" in sentence for sentence in found.why)
    assert found.device_bytes < whole.device_bytes


@pytest.mark.parametrize(
    "fields",
    [{"sampler": "whole", "layers": 2}, {"sampler": "ladies", "fanouts": [40, 20]}, {"task": "link-prediction"}],
)
def test_what_is_not_predicted_for_several_gpus(fields):
    with refused("unsupported-combination gpus"):
        ps.memory(community_graph(300), gpus=2, device="cuda", **fields)


def test_the_api_and_the_command_say_the_same(tmp_path, monkeypatch, capsys):
    graph = community_graph(600)
    graph.save(tmp_path / "graph")
    found = ps.memory(graph, "sage", device="cuda", **SMALL)
    flags = [
        f"--{name.replace('_', '-')}={','.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in SMALL.items()
    ]
    asked = ["memory", "--graph", str(tmp_path / "graph"), "--device", "cuda", *flags]
    code, answer, _ = command(monkeypatch, capsys, *asked, "--model", "sage", "--json")
    assert code == 0
    told = json.loads(answer)
    assert told["device_memory"]["allocated"] == found.device_allocated
    assert told["device_memory"]["reserved"] == found.device_reserved
    kept = {"device", "device_memory", "host_memory", "moment", "method", "reason", "seconds", "why"}
    assert set(told) == kept | {"run", "run_unknown"}
    assert told["method"] == "traced" and told["host_memory"]["resident"] > 0
    code, plain, _ = command(monkeypatch, capsys, *asked)
    assert code == 0 and "device weights:" in plain and "Peak: " in plain
    code, _, refused_with = command(monkeypatch, capsys, *asked, "--device-memory", "100MB", "--json")
    assert code == 2 and json.loads(refused_with.splitlines()[-1])["code"] == "out-of-memory"


def test_sizes_are_read_and_written_as_people_do():
    assert [parsed_bytes(text, "x") for text in ("80GB", "24 GiB", "512mb", "1000")] == [
        80 * 10**9,
        24 << 30,
        512 * 10**6,
        1000,
    ]
    for text in ("much", "0", "-3GB", "3XB"):
        with refused("invalid-value --device-memory"):
            parsed_bytes(text, "--device-memory")
    assert size_text(1_230_000_000) == "1.23 GB" and size_text(12) == "12 bytes"
    assert bar_of(5, 10) == "█" * 20 and bar_of(0, 10) == ""


def test_a_forecast_does_not_change_the_session_or_train_anything():
    graph = community_graph(600)
    module = Plain(4, 4)
    before = {name: values.clone() for name, values in module.state_dict().items()}
    forecast_of(graph, module_object=module)
    for name, values in module.state_dict().items():
        assert torch.equal(values, before[name]) and not values.is_meta
    assert not any(part._forward_pre_hooks for part in module.modules())
    assert isinstance(forecast_fields(forecast_of(graph))["why"], list)
    assert np.isfinite(forecast_of(graph, "cpu").seconds) and START == (0, 0)


def test_learnable_rows_lie_on_the_device_where_there_is_room():
    graph = community_graph(features=False)
    found, wider = (forecast_of(graph, embedding=width) for width in (8, 512))
    adagrad, wider_adagrad = (forecast_of(graph, embedding=w, embedding_optimiser="adagrad") for w in (8, 512))
    assert {each.method for each in (found, wider, adagrad, wider_adagrad)} == {"traced"}
    # Adam keeps two further numbers for each, Adagrad one; everything else is the same with both.
    more, fewer = (
        wider.device_allocated - found.device_allocated,
        wider_adagrad.device_allocated - adagrad.device_allocated,
    )
    assert more - fewer == 4 * (512 - 8) * graph.num_nodes


def test_weights_are_counted_and_not_made(monkeypatch):
    """The figure of a model that few machines could hold: its first layer has two matrices of 2^27 rows."""
    graph, hidden = community_graph(60), 1 << 27
    made = []
    monkeypatch.setattr(nn.init, "kaiming_uniform_", lambda tensor, *given, **named: made.append(tensor) or tensor)
    found = forecast_of(graph, "cpu", hidden=hidden)
    assert made and all(tensor.is_meta for tensor in made)
    width = graph.nodes["node"].fields["x"].shape[1]
    assert found.categories["weights"] >= 2 * 4 * hidden * width
    assert found.host > 4 * found.categories["weights"] > 30 << 30


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("fields", [{}, {"model": "gat", "heads": 1}, {"task": "link-prediction", "scorer": "mlp"}])
def test_sizes_that_cannot_be_counted_are_refused(device, fields):
    for hidden in (1 << 31, 1 << 62, 10**400):
        with refused("out-of-memory hidden"):
            forecast_of(community_graph(60), device, **{**fields, "fanouts": [5, 3, 2], "hidden": hidden})


def test_a_model_that_cannot_be_traced_gets_its_weights_for_a_trial(monkeypatch):
    def asks_for_numbers(*_):
        raise UntraceableError("a number is asked for")

    monkeypatch.setattr(TracedMemory, "traced", asks_for_numbers)
    found = forecast_of(community_graph(60), capture=False)
    assert found.method == "trial" and "a number is asked for" in found.reason
    assert found.categories["libraries"] == 64 * MB
    with refused("out-of-memory hidden"):
        forecast_of(community_graph(60), hidden=1 << 26)


def test_an_absurd_model_is_one_sentence_of_the_command(tmp_path, monkeypatch, capsys):
    community_graph(300).save(tmp_path / "graph")
    code, out, err = command(monkeypatch, capsys, "memory", "--graph", tmp_path / "graph", "--hidden", str(1 << 31))
    assert (code, out) == (2, "")
    assert "hidden" in err.splitlines()[-1] and "Traceback" not in err
