"""Draw docs/images/curves.svg: FedAvg and FedLD as in the ten lines of README, with a test after every fifth round."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh

federation = fh.data.federate(fh.data.load("digits"), fh.data.dirichlet(alpha=0.1), num_clients=20)
model = fh.models.mlp(federation.num_classes, hidden=(64,))
options = {"rounds": 100, "cohort_size": 10, "num_seeds": 3, "evaluate_every": 5}
plt.rcParams |= {
    "svg.hashsalt": "curves",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
figure, axis = plt.subplots(figsize=(6.4, 2.6), layout="constrained")
for name in ("fedavg", "fedld"):
    algorithm = fh.algorithms.ALGORITHMS[name](learning_rate=0.1, batch_size=16, epochs=2)
    history = fh.simulate(algorithm, model, federation, **options)
    accuracy = 100 * np.asarray(history.evaluation.test.accuracy)  # [seeds, evaluations]
    axis.plot(history.rounds, accuracy.mean(axis=0), label=f"{name}, {accuracy[:, -1].mean():.1f} % at the end")
    axis.fill_between(history.rounds, accuracy.min(axis=0), accuracy.max(axis=0), alpha=0.2)
axis.set(xlabel="round", ylabel="test accuracy, %", title="Digits, 20 clients by Dirichlet(0.1), 10 per round, 3 seeds")
axis.legend(loc="lower right")
figure.savefig(Path(__file__).parent / "images" / "curves.svg", metadata={"Date": None})
