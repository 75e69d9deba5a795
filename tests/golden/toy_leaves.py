"""Rounds of the toy model whose parameters are one vector in four leaves (weight and bias of a body and of a head).

Client i's gradient at p is h_i p + tape, whatever the leaf, see the README of the golden folders of personalization.
"""

import functools
from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.engine.parallel.layout import vmapped
from fedjax_het.engine.round.client_step import Cohort, Common, cohort_data, cohort_members, make_personal_model
from fedjax_het.engine.round.program import Round, make_round, with_population
from fedjax_het.problem import ForwardPass
from fedjax_het.server.weightings import stateless
from fedjax_het.types import Array, Broadcast, ClientData, Params, State, Variables
from tests.golden.cases import Case
from tests.golden.networks import network
from tests.golden.replay import client_data, fixed_cohort

ONE_BY_ONE = {"batch_size": 1, "shuffle": False}
LEAVES = ("body/kernel", "body/bias", "classifier/kernel", "classifier/bias")  # in the order of `parts`


class Toy:
    """The toy model of a case, and the conversions between its leaves and the case's vectors."""

    def __init__(self, case: Case):
        self.parts, self.start = case["parts"], case["w0"]
        self.is_body = self.parts < 2

    @functools.partial(jax.jit, static_argnums=0)
    def leaves(self, vector: Array | np.ndarray) -> Params:
        """The parameters of a vector [..., d]."""
        params: Params = {}
        for part in np.unique(self.parts):
            layer, leaf = LEAVES[part].split("/")
            params.setdefault(layer, {})[leaf] = jnp.asarray(vector)[..., self.parts == part]
        return params

    @functools.partial(jax.jit, static_argnums=0)
    def vector(self, params: Params) -> Array:
        """The vector [..., d] of all parameters, or of those there are, in their order in the whole."""
        flat = {f"{layer}/{leaf}": x for layer, leaves in params.items() for leaf, x in leaves.items()}
        known = [part for part in range(4) if LEAVES[part] in flat]
        order = np.argsort(np.concatenate([np.flatnonzero(self.parts == part) for part in known]))
        return jnp.concatenate([flat[LEAVES[part]] for part in known], axis=-1)[..., order]

    def shared(self, states: Sequence[State]) -> np.ndarray:
        """The server's models after each round."""
        return np.stack([self.vector(state.server.shared["params"]) for state in states])

    def own(self, states: Sequence[State]) -> np.ndarray:
        """The personal models in the memory "own", [rounds, clients, d]."""
        return np.stack([self.vector(state.clients.memory["own"]["params"]) for state in states])

    def objective(self, forward: ForwardPass) -> Array:
        """The batch's inputs are (tape, h); the gradient is h p + tape."""
        tape, curvature = jnp.split(forward.batch.mask @ forward.batch.inputs, 2)
        vector = self.vector(forward.params)
        return jnp.sum(tape * vector + curvature / 2 * vector**2)

    def round(self, algorithm: Algorithm, num_clients: int, cohort_size: int) -> Round:
        algorithm = replace(algorithm, objective=(self.objective, *algorithm.objective[1:]))
        start = {"params": self.leaves(self.start)}
        return make_round(algorithm, network(start), num_clients, participation=fixed_cohort(range(cohort_size)))

    def data(self, tapes: np.ndarray, curvatures: np.ndarray, cohort: Sequence[int] | None = None) -> ClientData:
        """Client cohort[s] has the gradients tapes[s] [steps, d], one after the other; without a cohort, client s."""
        num_clients, size = curvatures.shape
        all_tapes = np.zeros((num_clients, *tapes.shape[1:]))
        all_tapes[np.arange(num_clients) if cohort is None else cohort] = tapes
        curved = np.broadcast_to(curvatures[:, None], all_tapes.shape)
        inputs = np.concatenate([all_tapes, curved], axis=-1).reshape(-1, 2 * size)
        return client_data(inputs, np.zeros(len(inputs)), [tapes.shape[1]] * num_clients)

    def replay(
        self, algorithm: Algorithm, case: Case, tapes: np.ndarray | None = None, state: State | None = None
    ) -> list[State]:
        """The states after each round; `tapes` [rounds, slots, steps, d] replace the case's."""
        tapes, cohorts = case["tapes"] if tapes is None else tapes, case["selected"]
        round = self.round(algorithm, len(case["h"]), cohorts.shape[1])
        data = [self.data(*arguments) for arguments in zip(tapes, [case["h"]] * len(tapes), cohorts, strict=True)]
        return run_rounds(round, data, cohorts, state)


def run_rounds(
    round: Round, data: Sequence[ClientData], cohorts: np.ndarray, state: State | None = None
) -> list[State]:
    """The states after rounds in which the clients cohorts[r] train on data[r]; one program for all rounds."""
    key, states = make_key(0), []
    train = with_population(round.train, False, vmapped)
    step = jax.jit(lambda state, cohort, data: train(state, cohort, cohort_data(data, cohort), key)[0])
    state = jax.jit(round.init)(key, data[0]) if state is None else state
    for batch, cohort in zip(data, cohorts, strict=True):
        state = step(state, Cohort(jnp.asarray(cohort), jnp.ones(len(cohort), bool)), batch)
        states.append(state)
    return states


def own_models(round: Round, state: State, data: ClientData) -> Variables:
    """The models that are evaluated as personal models, leaves [clients, ...]."""
    everyone = Cohort(jnp.arange(len(data.train.count)), jnp.ones(len(data.train.count), bool))

    @jax.jit
    def variables(state: State, data: ClientData) -> Variables:
        members = cohort_members(state.clients, cohort_data(data, everyone), everyone, make_key(0))
        server = state.server
        received = Broadcast(server.round, server.shared, server.published, base=server.base)
        common = Common(received, data.examples, server.frozen)
        make = lambda member: make_personal_model(round.algorithm, round.problem, common, member).variables  # noqa: E731
        return jax.vmap(make)(members)

    return variables(state, data)


@jax.jit
def completed(states: Sequence[State]) -> Params:
    """The personal models without a rule: shared and personal parameters, [rounds, clients, ...]."""

    def to_params(state: State) -> Params:
        num_clients = len(state.clients.rounds)
        shared = tree.broadcast(state.server.shared, num_clients)
        return tree.merge(shared, state.clients.personal)["params"]

    return jax.tree.map(lambda *x: jnp.stack(x), *map(to_params, states))


def stored_weighting(case: Case):
    """The name of the case's weighting, or a weighting by its numbers of samples, for any length of tapes."""
    return "uniform" if case.meta["weights"] == "uniform" else by_samples(case)


def by_samples(case: Case):
    counts = jnp.asarray(case["n_samples"], float)
    return stateless(lambda view: counts[view.cohort])


def sgd_with_decay_of_weights(
    learning_rate: float, momentum: float, weight_decay: float
) -> optax.GradientTransformation:
    """torch.optim.SGD with two groups of parameters: decay on weights and none on biases."""

    def is_weight(params: Params) -> Params:
        return jax.tree.map_with_path(lambda path, _: "bias" not in jax.tree_util.keystr(path), params)

    decay = optax.add_decayed_weights(weight_decay, mask=is_weight)
    return optax.chain(decay, optax.trace(momentum), optax.scale_by_learning_rate(learning_rate))
