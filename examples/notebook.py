"""A notebook: run an experiment, look at its rounds, predict with its model.

Open it in an editor that knows ``# %%`` cells (VS Code, PyCharm, Spyder, Jupytext), or run it as a script::

    python examples/notebook.py

The run folder is new each time, below ``runs/``. ``run.frame()`` needs pandas: ``pip install pandas``.
"""

# %% An experiment is a YAML file or a dictionary with the same keys (docs/experiments.md).
from __future__ import annotations

import torch
from sklearn.datasets import load_digits

import fedquilt as fq

experiment = {
    "name": "notebook",
    "seed": 7,
    "data": {"set": "digits", "clients": 4, "partition": {"scheme": "dirichlet", "alpha": 0.3}},
    "model": {"name": "mlp"},
    "algorithm": {"name": "fedavg"},
    "training": {"epochs": 2, "batch": 16, "momentum": 0.9},
}

# %% Run three rounds with another learning rate. Interrupt the cell to stop the run.
run = fq.simulate(experiment, rounds=3, set={"training.lr": 0.05})

# %% The rounds, as a table if pandas is installed.
try:
    print(run.frame()[["round", "accuracy", "loss", "seconds"]].to_string(index=False))
except fq.PackageMissingError as error:
    print(error)
    for row in run.rounds:
        print(f"round {row.round}: accuracy {row.accuracy:.4f}, loss {row.loss:.4f}, {row.seconds:.2f} s")

# %% The global model of the last round, as an ordinary torch module. Pixels go from 0 to 16 in scikit-learn's table.
model = run.model()
digits = load_digits()
images = torch.from_numpy((digits.data[:8] / 16).astype("float32"))
with torch.inference_mode():
    print("predicted:", model(images).argmax(dim=1).tolist())
print("true:     ", digits.target[:8].tolist())

# %% Load the run again later, from its folder.
again = fq.load_run(run.folder)
print(f"{again.folder}: {len(again.rounds)} rounds, best accuracy {again.result.final['best_accuracy']:.4f}")
