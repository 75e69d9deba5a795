"""Training in one call, and its history."""

import inspect
import sys
from typing import NamedTuple

import jax
import numpy as np

from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine.early_stopping import TRAIN_LOSS, EarlyStopping
from fedjax_het.engine.evaluation import client_statistics
from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution.cost import RunCost
from fedjax_het.engine.parallel.runs import Sweep
from fedjax_het.engine.simulation import Simulation
from fedjax_het.types import Model, State


class History(NamedTuple):
    """The history of a finished training; the leaves of `evaluation` are [num_seeds, evaluations, ...]."""

    rounds: list[int]  # the number of rounds done at each evaluation; the last is the end of the training
    evaluation: Evaluation
    train_loss: np.ndarray  # [num_seeds, rounds]
    state: State
    cost: RunCost

    def mean_and_std(self) -> dict[str, tuple[float, float]]:
        """Summarize the last evaluation over seeds: {"test/accuracy": (mean, population standard deviation)}."""
        last = jax.tree.map(lambda x: x[:, -1], self.evaluation)
        return {
            name: (float(v.mean()), float(v.std())) for name, v in client_statistics.flatten_evaluation(last).items()
        }


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
        algorithm: The algorithm, or a sweep over its hyper-parameters.
        model: The model.
        federation: The clients and their data.
        progress: Whether to display a progress bar with the time left on stdout, after compilation.
        stop: The rule by which training ends before its last round (default None).
        **options: The other arguments of `Simulation`; `rounds` is required.

    Returns:
        The history of the training.
    """
    from tqdm import tqdm  # not at the start of every program

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
                figures = {TRAIN_LOSS: metrics.loss[:, -1], **client_statistics.flatten_evaluation(evaluations[-1][1])}
                scores.append(figures[stop.metric])
                if stop.find_end(scores) is not None:
                    break
    evaluation = jax.tree.map(lambda *parts: np.stack(parts, axis=1), *(part for _, part in evaluations))
    return History([r for r, _ in evaluations], evaluation, np.concatenate(losses, axis=1), state, simulation.cost)


def _show_options() -> inspect.Signature:
    """The signature of `simulate` with the arguments of `Simulation` in place of **options."""
    own, options = inspect.signature(simulate), inspect.signature(Simulation).parameters
    return own.replace(parameters=[*options.values(), own.parameters["progress"], own.parameters["stop"]])


simulate.__dict__["__signature__"] = _show_options()
