"""Workload files: what they become, and what is said of bad ones."""

from pathlib import Path

import numpy as np
import pytest
import yaml

from penstock.errors import PenstockError
from penstock.simulate import POLICIES, GnnJob, gnn_workload
from penstock.simulate.document import read_workload
from penstock.simulate.scenario import build_scenario
from refusals import refused

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PAIR = [{"name": "a", "nic_gbps": 8}, {"name": "b", "nic_gbps": 4}]


def scenario(path, fields, iterations=None):
    file = path / "workload.yaml"
    file.write_text(yaml.safe_dump(fields))
    return build_scenario(read_workload(file), iterations)


def chain(**changes):
    """A task, a flow of one second over the slower link, a task."""
    fields = {
        "machines": [dict(machine) for machine in PAIR],
        "tasks": [
            {"name": "first", "machine": "a", "seconds": 0.5},
            {"name": "second", "machine": "b", "seconds": 0.25},
        ],
        "flows": [{"from": "first", "to": "second", "bytes": 0.5e9}],
    }
    return fields | changes


def gnn(**changes):
    fields = {"stores": 2, "workers": 3, "samplers_per_worker": 2, "sampler_seconds": 0.1, "worker_seconds": 0.2}
    return {"machines": PAIR, "gnn": fields | {"pull_bytes": 1e6, "model_bytes": 1e6} | changes}


@pytest.mark.parametrize("name", ["training", "exchange"])
@pytest.mark.parametrize("policy", POLICIES)
def test_examples_run_under_every_policy(name, policy):
    found = build_scenario(read_workload(EXAMPLES / f"{name}.yaml")).simulate(policy)
    assert np.isfinite(found.ends).all() and found.makespan == found.ends.max()


def test_a_chain_takes_what_its_parts_take(tmp_path):
    assert scenario(tmp_path, chain()).simulate().makespan == pytest.approx(1.75)
    # Every iteration but the first hides the first task behind the flow.
    assert scenario(tmp_path, chain(iterations=3)).simulate().makespan == pytest.approx(3.75)
    assert scenario(tmp_path, chain(iterations=3), iterations=1).simulate().makespan == pytest.approx(1.75)


def test_speeds_and_two_way_rates(tmp_path):
    machines = [{"name": "a", "in_gbps": 1, "out_gbps": 8, "speed": 2}, {"name": "b", "in_gbps": 2, "out_gbps": 1}]
    made = scenario(tmp_path, chain(machines=machines))
    assert made.network.capacities.tolist() == [1e9, 0.125e9, 0.125e9, 0.25e9]
    assert made.simulate().makespan == pytest.approx(0.25 + 2 + 0.25)


def test_lags_and_further_dependencies(tmp_path):
    # With `second` of the iteration before to wait for, nothing overlaps.
    after = [{"before": "second", "after": "first", "lag": 1}]
    assert scenario(tmp_path, chain(iterations=3, after=after)).simulate().makespan == pytest.approx(3 * 1.75)
    flows = [{"from": "first", "to": "second", "bytes": 0.5e9, "lag": 1, "name": "late"}]
    found = scenario(tmp_path, chain(iterations=2, flows=flows)).simulate()
    assert found.starts[0, 1] == 0 and found.starts[1, 1] == pytest.approx(found.ends[0, 2])


def test_racks_keep_their_names(tmp_path):
    machines = [machine | {"rack": rack} for machine, rack in zip(PAIR, ["west", 7], strict=True)]
    made = scenario(tmp_path, chain(machines=machines, oversubscription=2))
    assert made.network.link_names[4:] == ("rack west up", "rack 7 up", "rack west down", "rack 7 down")
    assert made.simulate().makespan == pytest.approx(0.5 + 2 + 0.25)


def test_a_spread_is_an_items_own_and_keeps_its_mean(tmp_path):
    tasks = [task | {"spread": ratio} for task, ratio in zip(chain()["tasks"], [1.0, 2.0], strict=True)]
    seconds = scenario(tmp_path, chain(tasks=tasks, iterations=4000)).amounts.seconds
    assert (seconds[:, 0] == 0.5).all()
    # Uniform in [0, 0.5]: the mean of 4000 has a standard error of 0.5 / sqrt(12 * 4000).
    assert seconds[:, 1].max() <= 0.5
    assert abs(seconds[:, 1].mean() - 0.25) < 5 * 0.5 / np.sqrt(12 * 4000)


def test_a_gnn_job_is_what_the_library_builds(tmp_path):
    made = scenario(tmp_path, gnn(servers=0, prefetch=2))
    fields = gnn()["gnn"] | {"servers": 0, "prefetch": 2}
    load = gnn_workload(GnnJob(**fields))
    assert made.load.task_names == load.task_names
    assert made.load.flow_bytes.tolist() == load.flow_bytes.tolist()
    assert made.load.lags.tolist() == load.lags.tolist()


def test_where_tasks_of_a_gnn_job_run(tmp_path):
    def places(**changes):
        made = scenario(tmp_path, gnn(**changes))
        return {name: "ab"[place] for name, place in zip(made.load.task_names, made.placement.tolist(), strict=True)}

    in_turn = places()
    assert [in_turn[f"worker{k}"] for k in range(3)] == ["a", "b", "a"]
    assert [in_turn[f"sampler1.{k}"] for k in range(2)] == ["a", "b"]
    together = places(placement="together")
    assert all(together[f"sampler{w}.{k}"] == together[f"worker{w}"] for w in range(3) for k in range(2))
    named = places(machines={"worker": "b", "worker2": "a", "sampler": ["b", "a", "a"]})
    assert [named[f"worker{k}"] for k in range(3)] == ["b", "b", "a"]
    assert [named[f"sampler{w}.{k}"] for w in range(3) for k in range(2)] == ["b", "a", "a", "b", "a", "a"]
    assert named["store1"] == "b"
    ring = places(servers=0, machines={"worker": "b"})
    assert ring["ring0.0"] == "b"


def test_several_jobs_share_the_machines(tmp_path):
    job = gnn()["gnn"]
    jobs = {"one": job, "two": job | {"workers": 1, "spread": {"pull": 2.0}}}
    made = scenario(tmp_path, {"machines": PAIR, "iterations": 3, "gnn": jobs})
    alone = scenario(tmp_path, {"machines": PAIR, "iterations": 3, "gnn": job})
    assert made.load.job_names == ("one", "two") and "two/worker0" in made.load.task_names
    assert made.simulate().makespan >= alone.simulate().makespan
    varied = made.amounts.sizes.std(axis=0) > 0
    assert set(np.array(made.load.flow_names)[varied]) == {
        name for name in made.load.flow_names if name.startswith("two/store")
    }


def without(key):
    return {name: value for name, value in chain().items() if name != key}


TASK = {"name": "x", "machine": "a", "seconds": 1}
BAD = {
    "cycle": (
        chain(flows=[{"from": "first", "to": "second", "bytes": 1}, {"from": "second", "to": "first", "bytes": 1}]),
        "form a cycle within one iteration (",
    ),
    "unknown machine": (chain(tasks=[TASK | {"machine": "aa"}], flows=[]), "called 'aa' (in task x): did you mean 'a'"),
    "unknown task": (
        chain(flows=[{"from": "frist", "to": "second", "bytes": 1}]),
        "No task is called 'frist' (in flow frist->second): did you mean 'first'?",
    ),
    "unknown item": (chain(after=[{"before": "x", "after": "first"}]), "No task or flow is called 'x' (in after)"),
    "zero rate": (
        chain(machines=[{"name": "a", "nic_gbps": 0}]),
        "machines[0].nic_gbps must be greater than 0",
    ),
    "negative rate": (chain(machines=[{"name": "a", "nic_gbps": -1}]), "machines[0].nic_gbps"),
    "endless rate": (chain(machines=[{"name": "a", "nic_gbps": float("inf")}]), "machines[0].nic_gbps"),
    "no rate": (chain(machines=[{"name": "a"}]), "give a either nic_gbps, or both in_gbps and out_gbps"),
    "half a rate": (chain(machines=[{"name": "a", "in_gbps": 1}]), "give a either nic_gbps"),
    "two rates": (chain(machines=[{"name": "a", "nic_gbps": 1, "in_gbps": 1, "out_gbps": 1}]), "give a either"),
    "one name twice": (chain(machines=[*PAIR, PAIR[0]]), "Two machines of the network have the same name"),
    "speed": (chain(machines=[{"name": "a", "nic_gbps": 1, "speed": 0}]), "machines[0].speed"),
    "negative seconds": (chain(tasks=[TASK | {"seconds": -1}], flows=[]), "tasks[0].seconds must be at least 0"),
    "two tasks of a name": (chain(tasks=[TASK, TASK], flows=[]), "Two items of the workload are called 'x'"),
    "two flows of a name": (chain(flows=chain()["flows"] * 2), "are called 'first->second'"),
    "two forms": (chain(gnn=gnn()["gnn"]), "give one of gnn, llm, trace, and tasks with their flows and after"),
    "no form": ({"machines": PAIR}, "give one of gnn, llm, trace, and tasks"),
    "flows alone": (without("tasks"), "No task is called 'first'"),
    "no machines": (without("machines"), "give machines"),
    "unknown key": (chain(iteration=3), "unknown key 'iteration' (did you mean 'iterations'?)"),
    "half the racks": (chain(machines=[PAIR[0] | {"rack": 1}, PAIR[1]]), "give every machine a rack, or none"),
    "oversubscription": (chain(oversubscription=0), "oversubscription must be greater than 0"),
    "too long": (
        chain(iterations=1_000_000, tasks=[TASK | {"name": f"x{k}"} for k in range(51)], flows=[]),
        "are more than 50,000,000",
    ),
    "spread": (gnn(spread={"pul": 2}), "called 'pul' (in the spread of job): did you mean 'pull'?"),
    "task placed nowhere": (gnn(machines={"wroker": "a"}), "called 'wroker' (in the machines of job): did you mean"),
    "placed on no machine": (gnn(machines={"worker": "c"}), "No machine is called 'c' (in the machines of job)"),
    "placed on none": (gnn(machines={"worker": []}), "worker has an empty list"),
    "rule": (gnn(placement="random"), "gnn.job.placement cannot be 'random' (use one of round-robin, together)"),
    "shares": (gnn(near_stores=[[1, 1]]), "near_stores has shape (1, 2)"),
    "too many flows": (gnn(stores=4000, workers=4000), "more than 5,000,000 flows an iteration"),
    "resources": (
        {**gnn(resources={"worker": {"gpus": 1}}), "machines": [PAIR[0] | {"resources": {"gpus": 1}}, PAIR[1]]},
        "a lacks 1 gpus: its tasks hold 2 and it has 1",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_get_one_sentence(tmp_path, name):
    fields, said = BAD[name]
    with pytest.raises(PenstockError) as refusal:
        scenario(tmp_path, fields)
    text = str(refusal.value)
    assert said in text
    assert text.endswith((".", "?")) and "\n" not in text


def test_a_cycle_is_named(tmp_path):
    with refused("invalid-document second->first ->"):
        scenario(tmp_path, BAD["cycle"][0])


def test_files_that_are_none(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    (tmp_path / "broken.yaml").write_text("machines: [\n")
    for name, said in (("list", "invalid-document"), ("broken", "invalid-document"), ("missing", "file-not-found")):
        with refused(said):
            read_workload(tmp_path / f"{name}.yaml")


LLM = {
    "model": {"layers": 4, "hidden": 64, "heads": 4, "sequence": 32, "feed_forward": 256},
    "parallel": {"tensor": 8, "pipeline": 2, "data": 2, "microbatches": 4},
    "servers": {"count": 4, "nic_gbps": 10},
}


def llm(**changes):
    return {"llm": LLM | changes}


BAD_LLM = {
    "machines too": (llm() | {"machines": PAIR}, "an llm has servers of its own"),
    "and gnn": (llm() | {"gnn": gnn()["gnn"]}, "give one of gnn, llm"),
    "no such model": (llm(model="gpt5"), "No model is called 'gpt5'"),
    "half a model": (llm(model={"layers": 4}), "give a preset, or hidden"),
    "no servers": ({"llm": {"model": "gpt3-13b", "parallel": {}}}, "llm.servers is missing: add it"),
    "too few GPUs": (llm(servers={"count": 1}), "give more servers"),
    "zero rate": (llm(servers={"count": 4, "nic_gbps": 0}), "must be at least 1e-06"),
    "pairs of matchings": (
        llm(all_to_all={"schedule": "bvn", "detail": "pairs"}),
        "detail pairs is for schedule fair",
    ),
    "next to no rate": (llm(compute={"tflops": 1e-300, "efficiency": 1e-300}), "must be at least 1e-06"),
    "not a number": (llm(servers={"count": 4, "oversubscription": float("nan")}), "must be at most 1024"),
    "unknown schedule": (llm(all_to_all={"schedule": "ring"}), "(use one of fair, printed, matched, bvn)"),
}


@pytest.mark.parametrize("name", BAD_LLM)
def test_bad_language_models_get_one_sentence(tmp_path, name):
    fields, says = BAD_LLM[name]
    path = tmp_path / "bad.yaml"
    path.write_text(yaml.safe_dump(fields))
    with pytest.raises(PenstockError) as error:
        build_scenario(read_workload(path))
    assert says in str(error.value)


def test_a_preset_takes_what_is_said_otherwise(tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text(yaml.safe_dump(llm(model={"preset": "gpt3-13b", "layers": 4, "sequence": 64})))
    job = read_workload(path).llm.job()
    assert (job.model.layers, job.model.sequence, job.model.hidden) == (4, 64, 5120)
    assert len(build_scenario(read_workload(path)).amounts.seconds) == 3
