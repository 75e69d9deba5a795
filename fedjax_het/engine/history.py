"""Training in one call, and its history."""

import importlib
import inspect
import sys
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.early_stopping import TRAIN_LOSS, EarlyStopping
from fedjax_het.engine.evaluation import client_statistics
from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.evaluation.phase_statistics import summarize_phases
from fedjax_het.engine.execution.cost import RunCost
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.simulation import Simulation
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Model, State


class History(NamedTuple):
    """The results of a finished run; the leaves of `evaluation` are [num_seeds, evaluations, ...]."""

    rounds: list[int]  # completed rounds at each evaluation; the last entry is the end of training
    evaluation: Evaluation
    train_loss: np.ndarray  # [num_seeds, rounds]
    state: State
    cost: RunCost

    def figures(self) -> dict[str, np.ndarray]:
        """Return all metrics by name, such as "test/accuracy" or "clients/accuracy_mean", [runs, evaluations]."""
        losses = self.train_loss[:, np.array(self.rounds) - 1]
        return {TRAIN_LOSS: losses, **client_statistics.flatten_evaluation(self.evaluation)}

    def mean_and_std(self) -> dict[str, tuple[float, float]]:
        """Summarize the last evaluation over runs: {"test/accuracy": (mean, population standard deviation)}."""
        last = {name: values[:, -1] for name, values in self.figures().items()}
        return {name: (float(values.mean()), float(values.std())) for name, values in last.items()}

    def phase_statistics(self, random_accuracy: float = np.nan) -> dict[str, np.ndarray]:
        """Return average accuracy, forgetting, transfers, drop and recovery by phase, see `engine.summarize_phases`.

        Args:
            random_accuracy: The accuracy of an untrained model, which forward transfer is compared with.

        Raises:
            InputError: The data of clients do not change with the round.
        """
        if self.evaluation.phases is None:
            raise InputError("phase_statistics: the data of clients do not change. Give federate(...) a drift.")
        return summarize_phases(self.rounds, self.evaluation.phases, random_accuracy)

    def to_dataframe(self) -> Any:
        """Return a pandas.DataFrame with one row per run and evaluation: "run", "round", and a column per metric."""
        runs, rounds = np.indices((len(self.train_loss), len(self.rounds)))
        columns = {"run": runs, "round": np.array(self.rounds)[rounds], **self.figures()}
        return _import("pandas").DataFrame({name: values.ravel() for name, values in columns.items()})

    def plot(self, *names: str) -> np.ndarray:
        """Plot metrics against rounds with Matplotlib: the mean over runs, with a band from minimum to maximum.

        Args:
            *names: The metrics to plot together, see `figures` (default: one plot of main scores, one of losses).

        Returns:
            The axes, [plots]; `axes[0].figure.savefig("curves.png")` saves them.

        Raises:
            InputError: A metric is unknown, or Matplotlib is not installed.
        """
        figures = self.figures()
        if unknown := [name for name in names if name not in figures]:
            raise InputError(f"plot: unknown metric '{unknown[0]}'. {nearest(unknown[0], figures)}")
        kinds = (client_statistics.main_score(figures), "loss")
        scores, losses = ([n for n in figures if n.endswith((f"/{x}", f"/{x}_mean"))] for x in kinds)
        groups = [names] if names else [scores, losses]
        size = (6 * len(groups), 4)
        _, (axes,) = _import("matplotlib.pyplot").subplots(1, len(groups), squeeze=False, figsize=size)
        for axis, group in zip(axes, groups, strict=True):
            for name in group:
                axis.plot(self.rounds, figures[name].mean(axis=0), marker=".", label=name)
                axis.fill_between(self.rounds, figures[name].min(axis=0), figures[name].max(axis=0), alpha=0.2)
            axis.set_xlabel("round")
            axis.legend()
        return axes


def _import(name: str) -> Any:
    """Import an optional package."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        package = name.partition(".")[0]
        raise InputError(f"{package} is not installed. Install it with: pip install {package}") from error


def simulate(
    algorithm: Algorithm | Sweep,
    model: Model,
    federation: Federation,
    *,
    progress: bool = False,
    stop: EarlyStopping | None = None,
    **options,
) -> History:
    """Train, and evaluate at regular intervals.

    Args:
        algorithm: The algorithm, or a sweep over its hyperparameters.
        model: The model.
        federation: The clients and their data.
        progress: Whether to show a progress bar with the remaining time on stdout, after compilation.
        stop: The early stopping rule (default None).
        **options: The other arguments of `Simulation`; `rounds` is required.

    Returns:
        The history.
    """
    from tqdm import tqdm  # slow to import

    simulation = Simulation(algorithm, model, federation, **options)
    stop = stop and stop.complete(simulation)
    state, done, evaluations, losses, scores = simulation.start(), 0, [], [], []
    with tqdm(total=simulation.rounds, unit="round", disable=not progress, file=sys.stdout) as bar:
        for end in simulation.stops():
            state, metrics = simulation.advance(state, end - done)
            losses.append(metrics.loss)
            evaluations.append((end, simulation.evaluate(state)))
            bar.update(end - done)
            done = end
            if stop:
                figures = client_statistics.flatten_evaluation(evaluations[-1][1])
                scores.append(metrics.loss[:, -1] if stop.metric == TRAIN_LOSS else figures[stop.metric])
                if stop.find_end(scores) is not None:
                    break
    evaluation = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *(part for _, part in evaluations))
    return History([r for r, _ in evaluations], evaluation, np.concatenate(losses, axis=1), state, simulation.cost)


def _show_options() -> inspect.Signature:
    """The signature of `simulate` with the arguments of `Simulation` in place of **options."""
    own, options = inspect.signature(simulate), inspect.signature(Simulation).parameters
    return own.replace(parameters=[*options.values(), own.parameters["progress"], own.parameters["stop"]])


simulate.__dict__["__signature__"] = _show_options()
