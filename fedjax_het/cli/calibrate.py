"""Calibration of a run's head (CCVR): fedjax-het calibrate --workdir=runs/small

A step on the finished model of any algorithm that classifies examples. Each client reports the number, the mean and the
covariance of its features of each class under the server's model after the last checkpoint; the server pools them,
draws virtual features from a Gaussian for each class, and trains the head on these. Scores before and after are
printed; the run itself stays as it is.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.cli.export import write_model
from fedjax_het.cli.runs.trained_model import TrainedModel, load_model
from fedjax_het.client.measures import class_moments
from fedjax_het.engine import flatten_evaluation
from fedjax_het.engine.evaluation.client_measures import fold_clients
from fedjax_het.engine.evaluation.evaluate import BATCH, evaluate_model
from fedjax_het.errors import InputError
from fedjax_het.problem import Problem
from fedjax_het.server.calibration import ClassMoments, add_moments, calibrate_head, no_moments
from fedjax_het.types import Array, ClientData, Context, Key, Variables
from fedjax_het.validation import Count, NonNegative, Seed, validate_arguments


@validate_arguments
def calibrate(
    model: TrainedModel,
    *,
    draws: Count = 200,
    learning_rate: NonNegative = 0.01,
    batch_size: Count = 64,
    epochs: Count = 1,
    draw_seed: Seed = 0,
) -> tuple[TrainedModel, ClassMoments]:
    """Calibrate the head of a model on virtual features of its clients' classes.

    Args:
        model: The model and its federation.
        draws: The number of virtual features of each class, the paper's M, 100 to 2000.
        learning_rate: The learning rate of plain SGD on the head, 0.01 to 0.1; 0 changes nothing.
        batch_size: The number of virtual features per step.
        epochs: The number of passes over the virtual features.
        draw_seed: The seed of the draws and their order.

    Returns:
        The model with another head, and the pooled moments of its classes.

    Raises:
        InputError: A number out of range; labels that are masks; more features than covariances can be kept of.
    """
    problem, rounds, measure = model.problem, jnp.int32(model.rounds), class_moments(BATCH)

    @jax.jit
    def run(variables: Variables, data: ClientData, key: Key) -> tuple[Variables, ClassMoments]:
        start = no_moments(*_head_shape(problem, variables, data))
        moments = fold_clients(problem, variables, rounds, data, measure, add_moments, start)
        params = calibrate_head(
            problem.model.classify,
            variables["params"],
            moments,
            key,
            num_draws=draws,
            learning_rate=learning_rate,
            batch_size=batch_size,
            epochs=epochs,
        )
        return {**variables, "params": params}, moments

    variables, moments = run(model.variables, model.federation.data, make_key(draw_seed))
    return model._replace(variables=variables), moments


def _head_shape(problem: Problem, variables: Variables, data: ClientData) -> tuple[int, int]:
    """(Number of classes, number of features)."""
    context = Context(jnp.ones(1), jnp.int32(0), make_key(0), False)

    def outputs() -> tuple[Array, Array]:
        (features, _), _ = problem.model.encode(
            variables, problem.prepare(jnp.asarray(data.examples.inputs[:1])), context
        )
        return features, problem.model.classify(variables["params"], features)

    features, logits = jax.eval_shape(outputs)
    if features.ndim != 2:
        raise InputError(
            f"--workdir: the run's features have shape {features.shape[1:]} per example; virtual features need to be "
            "vectors. Name a run that classifies whole examples."
        )
    return logits.shape[-1], features.shape[-1]


def evaluate(model: TrainedModel) -> dict[str, np.ndarray]:
    """The scores of a model on all held-out examples of its federation, by name."""
    return flatten_evaluation(evaluate_model(model.problem, model.variables, model.federation, model.rounds))


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 for an input error, which is printed on stderr."""
    parser = argparse.ArgumentParser(prog="fedjax-het calibrate", description="Calibrate a run's head (CCVR).")
    parser.add_argument("--workdir", type=Path, required=True, help="the run directory")
    parser.add_argument("--seed", type=int, help="one of the run's seeds (default: the first)")
    parser.add_argument("--draws", type=int, default=200, help="virtual features of each class (default: 200)")
    parser.add_argument("--learning_rate", type=float, default=0.01, help="of SGD on the head (default: 0.01)")
    parser.add_argument("--batch_size", type=int, default=64, help="virtual features per step (default: 64)")
    parser.add_argument("--epochs", type=int, default=1, help="passes over the virtual features (default: 1)")
    parser.add_argument("--draw_seed", type=int, default=0, help="of the draws (default: 0)")
    parser.add_argument("--to", type=Path, help="a file for the calibrated model, .safetensors or .npz")
    flags = parser.parse_args(argv)
    model = load_model(flags.workdir, flags.seed, for_pytorch=flags.to is not None)
    settings = {name: getattr(flags, name) for name in ("draws", "learning_rate", "batch_size", "epochs", "draw_seed")}
    calibrated, moments = calibrate(model, **settings)
    before, after = evaluate(model), evaluate(calibrated)
    for name in before:
        if name.rpartition("/")[2] in ("accuracy", "accuracy_mean", "loss", "loss_mean"):
            print(f"{name}: {float(before[name]):.4f} before, {float(after[name]):.4f} after")
    if absent := np.flatnonzero(np.asarray(moments.counts) == 0).tolist():
        print(f"no client has examples of the classes {absent}: the others' virtual features still move their logits")
    if flags.to is not None:
        write_model(flags.to, calibrated)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
