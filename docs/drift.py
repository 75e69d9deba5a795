"""Draw docs/images/drift.svg: FedAvg on digits that change suddenly, gradually, or again and again."""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh
from docs.overview import FONT, INKS, SPINES
from fedjax_het.data import concept, drift

ROUNDS, START = 60, 20
DRIFTS = {
    "sudden, rotated": drift.sudden(START, concepts=concept.rotated()),
    "incremental, relabeled": drift.incremental(
        START, 20, concepts=concept.relabeled()
    ),
    "recurring, relabeled": drift.recurring(START, 10, 2, concepts=concept.relabeled()),
}
CURVES = {
    "phases/accuracy_next": ("data of the next round", "#3b82f6", 2.0),
    "first": ("old concept", "#a855f7", 1.2),
    "last": ("new concept", "#f97316", 1.2),
}


def train(rule: drift.Drift) -> tuple[np.ndarray, fh.History]:
    """The first rounds of the phases, and the history of FedAvg on the data of a drift."""
    dataset, partition = fh.data.load("digits"), fh.data.dirichlet(alpha=1.0)
    federation = fh.data.federate(
        dataset, partition, num_clients=20, test_fraction=0, drift=rule
    )
    algorithm = fh.algorithms.fedavg(learning_rate=0.1, batch_size=16, epochs=2)
    options = {"cohort_size": 10, "num_seeds": 3, "evaluate_every": 1}
    model = fh.models.mlp(federation.num_classes, hidden=(64,))
    history = fh.simulate(algorithm, model, federation, rounds=ROUNDS, **options)
    assert federation.phases is not None
    return federation.phases.starts, history


def draw(axis, title: str, starts: np.ndarray, history: fh.History) -> None:
    """Draw the mean over seeds, a band from the lowest to the highest, and a line at the start of each phase."""
    figures = history.figures()
    phases = sorted(
        int(name.rpartition("_")[2])
        for name in figures
        if name.startswith("phases/accuracy_") and name[-1].isdigit()
    )
    new = phases[-1] if title.startswith("incremental") else phases[1]
    values = {
        **figures,
        "first": figures["phases/accuracy_0"],
        "last": figures[f"phases/accuracy_{new}"],
    }
    for start in starts[1:]:
        axis.axvline(start, color="#7d8590", linewidth=0.8, linestyle=":")
    for name, (label, color, width) in CURVES.items():
        accuracy = 100 * values[name]
        mean = accuracy.mean(axis=0)
        axis.plot(history.rounds, mean, label=label, color=color, linewidth=width)
        ends = accuracy.min(axis=0), accuracy.max(axis=0)
        axis.fill_between(history.rounds, *ends, color=color, alpha=0.15, linewidth=0)
    axis.set(title=title, xlabel="round", ylim=(0, 100))
    statistics = history.phase_statistics()
    print(title, "starts", starts.tolist())
    for name in ("drop", "recovery", "forgetting"):
        print(" ", name, np.round(statistics[name].mean(axis=0), 3).tolist())


def main() -> None:
    plt.rcParams |= FONT | INKS | SPINES | {"svg.hashsalt": "drift"}
    figure, axes = plt.subplots(
        1, 3, figsize=(9.6, 3.2), layout="constrained", sharey=True
    )
    for axis, (title, rule) in zip(axes, DRIFTS.items(), strict=True):
        draw(axis, title, *train(rule))
    axes[0].set_ylabel("accuracy of clients, %")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    path = Path(__file__).parent / "images" / "drift.svg"
    figure.savefig(path, transparent=True, metadata={"Date": None})


if __name__ == "__main__":
    main()
