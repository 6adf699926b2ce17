"""A search by Optuna: each trial is a run, and a callback tells Optuna of every epoch, so that poor trials end early.

python examples/optuna_search.py GRAPH
"""

import argparse

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
            "hidden": trial.suggest_int("hidden", 16, 128, step=16),
        }
        run = ps.train(graph, callbacks=[prune], run=f"{folder}/{trial.number}", force=True, **chosen, **fields)
        if run.state == "stopped-early":
            raise optuna.TrialPruned
        return run.val["accuracy"]

    how = {"sampler": optuna.samplers.TPESampler(seed=0), "pruner": optuna.pruners.MedianPruner(n_startup_trials=3)}
    study = optuna.create_study(direction="maximize", **how)
    study.optimize(objective, n_trials=trials)
    return study


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("graph", help="a graph folder, an .npz archive or the name of a built-in data set")
    best = main(arguments.parse_args().graph, fanouts=[10, 5], batch_size=256, epochs=10).best_trial
    print(f"lr: {best.params['lr']:.4f}, hidden: {best.params['hidden']}: validation accuracy {best.value:.4f}")
    print(f"Run: runs/optuna/{best.number}")
