"""Draw docs/images/record_privacy.svg: the epsilon of clients, and accuracy over epsilon.

    python docs/record_privacy.py fashion_mnist.npz

Takes about half an hour on two cores.
"""

import csv
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh
from fedjax_het.privacy import RecordPrivacy, record_epsilons, record_noise

COLORS = {"fedavg": "#a855f7", "scaffold": "#3b82f6"}
GREY = "#7d8590"  # legible on white and on black
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "record_privacy",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
    GREY,
)
IMAGES = Path(__file__).parent / "images"
ROUNDS, STEPS, BATCH, DELTA = 40, 20, 64, 1e-4
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
TARGET = 4.0  # of the left panel


def main(path: str) -> None:
    """Train and draw."""
    dataset = fh.data.load("arrays", path=path)
    federation = fh.data.federate(dataset, fh.data.dirichlet(alpha=0.5), num_clients=20)
    sizes = np.asarray(federation.data.train.count)
    model = fh.models.mlp(federation.num_classes, hidden=(32,))
    steps = np.full(len(sizes), ROUNDS * STEPS)

    def find_noise(target: float) -> tuple[float, ...]:
        return record_noise(RecordPrivacy(1.0), target, BATCH, sizes, steps, DELTA)

    def measure(name: str, privacy: RecordPrivacy | None) -> float:
        algorithm = fh.algorithms.ALGORITHMS[name](
            learning_rate=0.1, batch_size=BATCH, steps=STEPS
        )
        history = fh.simulate(
            replace(algorithm, record_privacy=privacy),
            model,
            federation,
            rounds=ROUNDS,
            layout=fh.layout.chunked(4),
            evaluate_every=ROUNDS,
        )
        return 100 * float(np.asarray(history.evaluation.test.accuracy)[0, -1])

    noise = {epsilon: find_noise(epsilon) for epsilon in EPSILONS}
    rows = [(name, "none", measure(name, None)) for name in COLORS]
    for epsilon, multipliers in noise.items():
        privacy = RecordPrivacy(1.0, multipliers)
        rows += [(name, epsilon, measure(name, privacy)) for name in COLORS]
        print(rows[-2:], flush=True)
    with (IMAGES / "record_privacy.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["algorithm", "epsilon", "test accuracy"])
        table.writerows((*row[:2], f"{row[2]:.2f}") for row in rows)
    draw(rows, sizes, find_epsilons(sizes, noise[TARGET]))


def find_epsilons(
    sizes: np.ndarray, multipliers: tuple[float, ...]
) -> dict[str, np.ndarray]:
    """The epsilon of each client, with equal noise and with noise of its own."""
    steps = np.full(len(sizes), ROUNDS * STEPS)
    given = {"equal noise": float(np.median(multipliers))}
    given |= {f"target_epsilon = {TARGET:g}": multipliers}
    return {
        label: record_epsilons(RecordPrivacy(1.0, z), BATCH, sizes, steps, DELTA)
        for label, z in given.items()
    }


def draw(rows: list, sizes: np.ndarray, own: dict[str, np.ndarray]) -> None:
    """Draw the epsilon of each client, and (algorithm, epsilon, accuracy) of each run."""
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, 3.8), layout="constrained"
        )
        for (label, values), color in zip(own.items(), (GREY, "#22a559"), strict=True):
            left.plot(sizes, values, ".", color=color, markersize=9, label=label)
        left.set(
            xlabel="training examples of the client", ylabel="epsilon", ylim=(0, None)
        )
        left.set(title="20 clients after 40 rounds")
        left.legend(frameon=False)
        places = [*range(len(EPSILONS)), len(EPSILONS) + 0.5]
        for name, color in COLORS.items():
            scores = [score for label, _, score in rows if label == name]
            right.plot(
                places[:-1], scores[1:], ".-", color=color, linewidth=2, label=name
            )
            right.plot(places[-1], scores[0], ".", color=color, markersize=9)
        right.set_xticks(places, [*(f"{epsilon:g}" for epsilon in EPSILONS), "none"])
        right.set(xlabel="largest epsilon of a client", ylabel="test accuracy, %")
        right.set(title="Fashion-MNIST, Dirichlet(0.5)")
        right.legend(frameon=False)
        figure.savefig(
            IMAGES / "record_privacy.svg", transparent=True, metadata={"Date": None}
        )


if __name__ == "__main__":
    main(sys.argv[1])
