"""Draw docs/images/overview.svg: the data of each client, and the test accuracy of five algorithms."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh

COLORS = {
    "fedacg": "#f97316",
    "scaffold": "#3b82f6",
    "fedavgm": "#22a559",
    "fedavg": "#a855f7",
    "fedadam": "#ef4444",
}
GREY = "#7d8590"  # legible on white and on black
FONT = {
    "svg.fonttype": "none",
    "svg.hashsalt": "overview",
    "font.family": "sans-serif",
    "font.size": 11,
}
INKS = dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
    GREY,
)
SPINES = {"axes.spines.top": False, "axes.spines.right": False}


def draw_clients(axis, counts: np.ndarray) -> None:
    """Draw the examples of each client, stacked by class; counts: [clients, classes]."""
    order = np.argsort(-counts.sum(axis=1))
    bottom = np.zeros(len(counts))
    for label, column in enumerate(counts[order].T):
        color = plt.get_cmap("Spectral")((label + 0.5) / counts.shape[1])
        axis.bar(np.arange(len(counts)), column, bottom=bottom, color=color, width=0.85)
        bottom += column
    axis.set(
        xlabel="client",
        ylabel="training examples, by class",
        xticks=[],
        title="20 clients, Dirichlet(0.1)",
    )


def draw_curves(axis, results: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the mean of the seeds with a band from the lowest to the highest, and the final mean."""
    for name, (rounds, accuracy) in results.items():
        label = f"{name}, {accuracy[:, -1].mean():.1f} %"
        axis.plot(
            rounds, accuracy.mean(axis=0), color=COLORS[name], linewidth=2, label=label
        )
        axis.fill_between(
            rounds,
            accuracy.min(axis=0),
            accuracy.max(axis=0),
            color=COLORS[name],
            alpha=0.15,
            linewidth=0,
        )
    axis.set(
        xlabel="round",
        ylabel="test accuracy, %",
        ylim=(40, 100),
        title="Five algorithms, three seeds",
    )
    axis.legend(loc="lower right", frameon=False)


def main() -> None:
    dataset, partition = fh.data.load("digits"), fh.data.dirichlet(alpha=0.1)
    federation = fh.data.federate(dataset, partition, num_clients=20)
    model = fh.models.mlp(federation.num_classes, hidden=(64,))
    options = {"rounds": 60, "cohort_size": 10, "num_seeds": 3, "evaluate_every": 2}
    results = {}
    for name in COLORS:
        algorithm = fh.algorithms.ALGORITHMS[name](
            learning_rate=0.03, batch_size=16, epochs=2
        )
        history = fh.simulate(algorithm, model, federation, **options)
        results[name] = (
            np.asarray(history.rounds),
            100 * np.asarray(history.evaluation.test.accuracy),
        )
    plt.rcParams |= FONT | INKS | SPINES
    figure, axes = plt.subplots(
        1, 2, figsize=(9.6, 3.6), width_ratios=(2, 3), layout="constrained"
    )
    draw_clients(axes[0], np.asarray(federation.class_counts))
    draw_curves(axes[1], results)
    path = Path(__file__).parent / "images" / "overview.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
