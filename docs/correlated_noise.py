"""Draw docs/images/correlated_noise.svg: the error of correlated and independent noise, with its numbers as CSV.

Takes about ten minutes on two cores, most of them for the accountant.
"""

import csv
from dataclasses import replace
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np

import fedjax_het as fh
from fedjax_het.privacy import PoissonSampling, noise_multiplier

COLORS = {
    "independent": "#7d8590",
    "independent, Poisson sampling": "#ef4444",
    "tree": "#f97316",
    "optimal": "#a855f7",
    "buffered": "#22a559",
    "banded": "#3b82f6",
}
GREY = "#7d8590"  # legible on white and on black
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "correlated_noise",
    "font.family": "sans-serif",
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(
    ("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"),
    GREY,
)
IMAGES = Path(__file__).parent / "images"
ROUNDS, PERIOD, DELTA = 200, 10, 1e-5
EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
EPSILON = 8.0  # of the left panel
STRATEGIES = {
    "independent": "identity",
    **{name: name for name in ("tree", "optimal", "buffered", "banded")},
}


def find_errors(name: str, epsilon: float) -> np.ndarray:
    """Standard deviation of the noise in the model after each round, in units of C / m."""
    if name in STRATEGIES:
        strategy = fh.uplink.noise_strategy(STRATEGIES[name], ROUNDS, PERIOD)
        z = noise_multiplier(epsilon, PoissonSampling(1.0), 1, DELTA)
        return z * strategy.sensitivity() * np.sqrt(strategy.errors())
    z = noise_multiplier(epsilon, PoissonSampling(1 / PERIOD), ROUNDS, DELTA)
    return z * np.sqrt(np.arange(1, ROUNDS + 1))


def measure_errors(name: str, z: float, num_clients: int = 2 * PERIOD) -> np.ndarray:
    """The same, measured on models that only the noise moves, every 20 rounds."""
    stage = fh.uplink.matrix_mechanism(
        1.0, z, rounds=ROUNDS, separation=PERIOD, strategy=STRATEGIES[name]
    )
    still = fh.algorithms.fedavg(weighting="uniform", learning_rate=0.0)
    federation = fh.data.toy(
        num_clients=num_clients, image=(16, 16, 1), examples_per_client=(1, 2)
    )
    simulation = fh.Simulation(
        replace(still, uplink=(stage,)),
        fh.models.mlp(federation.num_classes, hidden=(32,), norm="none"),
        federation,
        rounds=ROUNDS,
        participation=fh.participation.cyclic(PERIOD),
        evaluate_every=20,
    )
    state = simulation.start()
    start, errors = jax.tree.map(np.array, state.server.shared), []
    for _ in range(ROUNDS // 20):
        state, _ = simulation.advance(state, 20)
        moved = fh.tree.subtract(state.server.shared, start)
        values = np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moved)])
        errors.append(values.std() * num_clients / PERIOD)
    return np.array(errors)


def main() -> None:
    """Compute and draw."""
    errors = {name: {e: find_errors(name, e) for e in EPSILONS} for name in COLORS}
    with (IMAGES / "correlated_noise.csv").open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["noise", "epsilon", "mean error", "error after the last round"])
        for name, curves in errors.items():
            for epsilon, values in curves.items():
                rms = np.sqrt(np.mean(values**2))
                table.writerow([name, epsilon, f"{rms:.4g}", f"{values[-1]:.4g}"])
    z = noise_multiplier(EPSILON, PoissonSampling(1.0), 1, DELTA)
    with plt.rc_context(STYLE):
        figure, (left, right) = plt.subplots(
            1, 2, figsize=(10, 4.2), layout="constrained"
        )
        rounds = np.arange(1, ROUNDS + 1)
        for name, color in COLORS.items():
            left.plot(
                rounds, errors[name][EPSILON], color=color, linewidth=2, label=name
            )
            if name in STRATEGIES:
                left.plot(rounds[19::20], measure_errors(name, z), ".", color=color)
            means = [np.sqrt(np.mean(values**2)) for values in errors[name].values()]
            line = ".--" if name == "tree" else ".-"
            right.plot(EPSILONS, means, line, color=color, linewidth=2)
        left.set(
            xlabel="round", ylabel="error of the model, in C / m", title="epsilon = 8"
        )
        right.set(xlabel="epsilon", title="root of the mean square over 200 rounds")
        right.set(xscale="log", yscale="log", xticks=EPSILONS)
        right.set_xticks(EPSILONS, [f"{e:g}" for e in EPSILONS])
        right.set_xticks([], minor=True)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        figure.savefig(
            IMAGES / "correlated_noise.svg", transparent=True, metadata={"Date": None}
        )


if __name__ == "__main__":
    main()
