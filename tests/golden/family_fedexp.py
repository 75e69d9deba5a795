"""FedExP: the authors' server on stored displacements, and the paper's."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithm import LocalUpdate
from fedjax_het.algorithms import fedexp
from fedjax_het.types import Trained
from tests.golden.cases import Case, covers
from tests.golden.replay import replay_rounds, vector_model


def move_by_example(problem, view, key) -> Trained:
    """A client whose update is its only example."""
    moved = view.start["params"]["w"] + view.data.examples.inputs[view.data.train.index[0]]
    return Trained({"params": {"w": moved}}, jnp.ones(()), (), {"loss": jnp.zeros(())})


@covers("fedexp", "*")
def server(case: Case):
    yield from _compare(case, "", preset="released")
    yield from _compare(case, "_paper", weighting="uniform")
    yield from _compare(case, "_paper_weighted", weighting="samples")


def _compare(case: Case, suffix: str, **options):
    num_clients, deltas = int(case["n_clients"]), case["deltas"][:, :, None]
    counts = case["n_samples"] if "n_samples" in case else np.ones(num_clients)
    algorithm = fedexp(case.meta["epsilon"], **options)
    algorithm = replace(algorithm, local_update=LocalUpdate(move_by_example, lambda count: count, 1))
    replay = replay_rounds(
        algorithm, vector_model(case["x0"]), deltas, np.zeros(deltas.shape[:3]), case["selected"], num_clients, counts
    )
    yield case.compare(f"x{suffix}", replay.weights())
    yield case.compare(f"eta{suffix}", np.stack([state.server.aggregator[1].rate for state in replay.states]))
    if f"x_eval{suffix}" in case:
        tested = [algorithm.evaluated(state.server)["params"]["w"] for state in replay.states]
        yield case.compare(f"x_eval{suffix}", np.stack(tested))
