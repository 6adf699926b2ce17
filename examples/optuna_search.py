"""A search by Optuna: each trial is a run, and a callback tells Optuna of every epoch, so that poor trials end early.

python examples/optuna_search.py GRAPH
"""

import sys

import optuna

import penstock as ps


def main(graph, trials=10, folder="runs/optuna", **fields):
    """Search learning rates and widths, and return the study."""
    graph = ps.load(graph)

    def objective(trial):
        def prune(result):
            trial.report(result.value, result.epoch)
            return trial.should_prune()

        chosen = {
            "lr": trial.suggest_float("lr", 1e-3, 3e-2, log=True),
            "hidden": 16 * trial.suggest_int("width", 1, 8),
        }
        run = ps.train(graph, callbacks=[prune], run=f"{folder}/{trial.number}", **chosen, **fields)
        if run.state == "stopped-early":
            raise optuna.TrialPruned
        return run.val["accuracy"]

    how = {"sampler": optuna.samplers.TPESampler(seed=0), "pruner": optuna.pruners.MedianPruner(n_startup_trials=3)}
    study = optuna.create_study(direction="maximize", **how)
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    print(main(sys.argv[1]).best_params)
