"""A search by Ray Tune: each trial is a run in a process of its own, and a callback tells Ray of every epoch, so that
its scheduler ends poor trials early.

python examples/ray_tune_search.py GRAPH
"""

import argparse
from pathlib import Path

from ray import tune
from ray.tune.schedulers import ASHAScheduler

import penstock as ps


def main(graph, trials=10, folder="runs/ray-tune", epochs=16, **fields):
    """Search learning rates and widths, and return Ray's results."""
    graph, folder = str(Path(graph).resolve()), Path(folder).resolve()

    def objective(chosen):
        def report(result):
            tune.report({"accuracy": result.value, "epoch": result.epoch})

        run = str(folder / "trials" / tune.get_context().get_trial_id())
        ps.train(graph, callbacks=[report], run=run, epochs=epochs, **chosen, **fields)

    space = {"lr": tune.loguniform(1e-4, 3e-2), "hidden": tune.choice([16, 32, 64, 128])}
    pruning = ASHAScheduler(time_attr="epoch", max_t=epochs, grace_period=1)
    how = tune.TuneConfig(metric="accuracy", mode="max", num_samples=trials, scheduler=pruning)
    kept = tune.RunConfig(name="search", storage_path=str(folder))
    return tune.Tuner(objective, param_space=space, tune_config=how, run_config=kept).fit()


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("graph", help="a graph folder, an .npz archive or the name of a built-in data set")
    best = main(arguments.parse_args().graph, fanouts=[10, 5], batch_size=256).get_best_result()
    settings, accuracy = best.config, best.metrics["accuracy"]
    print(f"lr: {settings['lr']:.4f}, hidden: {settings['hidden']}: validation accuracy {accuracy:.4f}")
