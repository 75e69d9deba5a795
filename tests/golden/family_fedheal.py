"""FedHEAL: rounds of the authors' masks, weights and aggregation, and of the paper's normalised memory."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedheal
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Model, Variables
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data

MASKED_BUFFERS = "the statistics of a norm are masked by the signs of their changes"


class Vector:
    """A model whose parameters are some entries of a vector, and whose buffers are the others, by their tensors."""

    def __init__(self, case: Case):
        self.tensors = case["leaf"]
        self.buffers = np.unique(self.tensors[~case["is_parameter"]])

    def variables(self, vector) -> Variables:
        leaves = {number: vector[..., self.tensors == number] for number in np.unique(self.tensors)}
        params = {f"tensor_{number}": leaf for number, leaf in leaves.items() if number not in self.buffers}
        buffers = {f"tensor_{number}": leaves[number] for number in self.buffers}
        return {"params": params, "buffers": buffers} if buffers else {"params": params}

    def vector(self, variables: Variables) -> np.ndarray:
        """The inverse, NaN for collections that are not there."""
        leaves = {name: leaf for collection in variables.values() for name, leaf in collection.items()}
        some = np.asarray(next(iter(leaves.values())))
        vector = np.full((*some.shape[:-1], len(self.tensors)), np.nan)
        for name, leaf in leaves.items():
            vector[..., self.tensors == int(name.removeprefix("tensor_"))] = leaf
        return vector

    def model(self, start: np.ndarray) -> Model:
        """A pass adds the inputs to the buffers."""

        def encode(variables: Variables, inputs, context):
            new = {name: leaves for name, leaves in variables.items() if name != "params"}
            changes = self.variables(inputs[0])
            return (inputs, {}), {name: jax.tree.map(jnp.add, new[name], changes[name]) for name in new}

        return Model(
            init=lambda key, inputs: self.variables(jnp.asarray(start)),
            encode=encode,
            classify=lambda params, features: features,
            layers=lambda inputs: {},
        )

    def objective(self, forward: ForwardPass):
        """Its gradient is minus the inputs."""
        changes = self.variables(forward.batch.mask @ forward.batch.inputs)["params"]
        return -sum(jnp.sum(forward.params[name] * change) for name, change in changes.items())


def replay(case: Case, **options) -> dict[str, np.ndarray]:
    """Rounds in which each client's single step at rate 1 is its stored update."""
    toy, present = Vector(case), case["present"]
    num_clients = present.shape[1]
    algorithm = fedheal(case.meta["threshold"], case.meta["beta"], learning_rate=1.0, batch_size=1, **options)
    algorithm = replace(algorithm, objective=(toy.objective,))
    everyone = jnp.arange(num_clients)
    participation = Participation(lambda n: n, lambda key, n, number: (everyone, jnp.asarray(present)[number]))
    round = make_round(algorithm, toy.model(case["w0"]), num_clients, participation=participation)
    step, state, rows = jax.jit(round.step_with_messages), None, []
    for updates, is_here in zip(case["updates"], present, strict=True):
        data = client_data(updates, np.zeros(num_clients), [1] * num_clients)
        state = round.init(make_key(0), data) if state is None else state
        state, _, said = step(state, data, make_key(0))
        weights = np.where(is_here, state.server.aggregator.weights, 0)
        masks = toy.vector({"params": jax.tree.map(lambda mask: mask.astype(float), said.uploads.reports["mask"])})
        rows.append(
            {
                "w": toy.vector(state.server.shared),
                "weights": weights / weights.sum(),
                "masks": np.where(is_here[:, None] & ~np.isnan(masks), masks, 1),
                "distances": np.where(is_here, said.uploads.reports["distance"], np.nan),
            }
        )
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


@covers("fedheal", "*")
def rounds(case: Case):
    released = replay(case, preset="released")
    yield case.compare("weights", released["weights"])
    yield case.compare("distances", released["distances"])
    normalised = replay(case, preset="released", normalised=True)
    yield case.compare("weights_normalised_memory", normalised["weights"])
    apart = np.max(np.abs(normalised["weights"] - released["weights"]))
    if abs(apart - case.meta["normalised_memory_differs"]) > 1e-9:
        raise ValueError("the two memories differ by another figure than meta says")
    is_parameter = case["is_parameter"]
    for name, ours in (("w", released), ("w_normalised_memory", normalised)):
        if is_parameter.all():
            yield case.compare(name, ours["w"])
            continue
        expected = np.where(is_parameter, case[name], _averaged(case, ours["weights"]))
        yield case.contain(name, ours["w"], expected, MASKED_BUFFERS, "their weighted means")
    if is_parameter.all():
        yield case.compare("masks", released["masks"])
    else:
        expected = np.where(is_parameter, case["masks"], 1)
        yield case.contain("masks", released["masks"], expected, MASKED_BUFFERS, "open for them")
    if np.allclose(case["weights_flat_norm"], case["weights"], rtol=0, atol=1e-6):
        yield case.compare("weights_flat_norm", released["weights"])
    else:
        yield case.refute("weights_flat_norm", released["weights"])


def _averaged(case: Case, weights: np.ndarray) -> np.ndarray:
    """The vector after each round without masks."""
    return case["w0"] + np.cumsum(np.einsum("ri,rid->rd", weights, case["updates"]), axis=0)
