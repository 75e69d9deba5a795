"""Replay of stored numbers through an aggregator alone, or through a whole compiled round."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithm import Aggregator, Algorithm, LocalUpdate, Memory
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.engine.round import server_step
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import RoundMetrics, make_round
from fedjax_het.types import (
    Broadcast,
    ClientData,
    Examples,
    ForwardPass,
    Model,
    PyTree,
    Rows,
    ServerView,
    State,
    Trained,
    Upload,
    Variables,
)


def aggregate(aggregator: Aggregator, stack: PyTree, num_examples=None, reports=None, round: int = 0, state=None):
    """(the update, the aggregator's state) that an aggregator makes of stacked updates, everyone present."""
    stack = jax.tree.map(jnp.asarray, stack)
    num_clients = jax.tree.leaves(stack)[0].shape[0]
    counts = jnp.ones(num_clients) if num_examples is None else jnp.asarray(num_examples, float)
    one = jax.tree.map(lambda x: jnp.zeros_like(x[0]), stack)
    received = Broadcast(jnp.asarray(round), one, {})
    uploads = Upload({}, reports or {}, counts, jnp.ones(num_clients))
    state = aggregator.init(one, num_clients) if state is None else state

    @jax.jit
    def run(state, received, uploads, stack):
        updates = StackedUpdates(stack)
        view = ServerView(received, uploads, jnp.arange(num_clients), counts > 0, num_clients, updates)
        return server_step.aggregate(aggregator, None, state, view)

    out, state = run(state, received, uploads, stack)
    return out.update, state


def combine(aggregator: Aggregator, stack: np.ndarray, num_examples=None, round: int = 0) -> np.ndarray:
    """The same for one vector per client, [m, d] -> [d]."""
    return aggregate(aggregator, {"params": {"w": stack}}, num_examples, round=round)[0]["params"]["w"]


def torch_optimizer(
    name: str, learning_rate: float, weight_decay: float = 0.0, *, momentum: float | None = None, **options
) -> optax.GradientTransformation:
    """torch.optim.SGD or Adam, as a case names it; other options by PyTorch's names: betas and eps of Adam."""
    if name.lower() == "sgd":
        if options:
            raise ValueError(f"the optimizer's options {sorted(options)} are not known for SGD")
        return torch_sgd(learning_rate, momentum or 0.0, weight_decay)
    if name.lower() != "adam":
        raise ValueError(f"the optimizer '{name}' is neither SGD nor Adam")
    b1, b2 = options.pop("betas", (0.9, 0.999))
    return optax.chain(optax.add_decayed_weights(weight_decay), optax.adam(learning_rate, b1, b2, **options))


def linear_objective(forward: ForwardPass):
    """An objective whose gradient is the batch's input, whatever the weights: replays a stored gradient sequence."""
    return jnp.sum(forward.params["w"] * jnp.sum(forward.batch.mask[:, None] * forward.batch.inputs, axis=0))


def vector_model(start: np.ndarray) -> Model:
    return Model(
        init=lambda key, inputs: {"params": {"w": jnp.asarray(start)}},
        encode=lambda variables, inputs, context: ((inputs, {}), {}),
        classify=lambda params, features: features,
        layers=lambda inputs: {},
    )


def rows(counts: Sequence[int], first: int = 0) -> Rows:
    """Client i has the next counts[i] examples."""
    starts = first + np.concatenate([[0], np.cumsum(counts)[:-1]])
    index = starts[:, None] + np.arange(max([*counts, 1]))
    return Rows(index.astype(np.int32), np.asarray(counts, np.int32))


def client_data(inputs: np.ndarray, labels: np.ndarray, counts: Sequence[int]) -> ClientData:
    nothing = Rows(np.zeros((len(counts), 1), np.int32), np.zeros(len(counts), np.int32))
    return ClientData(Examples(jnp.asarray(inputs), jnp.asarray(labels, jnp.int32)), rows(counts), nothing, nothing)


def fixed_cohort(cohort: Sequence[int]) -> Participation:
    ids = jnp.asarray(cohort)
    return Participation(lambda n: len(cohort), lambda key, n, number: (ids, jnp.ones(len(cohort), bool)))


def run_round_with(
    algorithm: Algorithm, received: Variables, trained: Variables, layers: Mapping[str, type] | None = None, **reports
) -> tuple[State, RoundMetrics]:
    """The state and metrics of one round in which client i 'trains' to trained[i] and reports each reports[name][i]."""

    def train(problem, view, key):
        return Trained(view.memory["trained"], jnp.ones(()), (), {"loss": jnp.zeros(())})

    def keep(name: str) -> Memory:
        start = received if name == "trained" else jnp.zeros(())
        return Memory(lambda variables: start, lambda problem, view: view.memory[name])

    def report(name: str):
        return lambda problem, view: view.memory[name]

    memory = {"trained": jax.tree.map(jnp.asarray, trained)} | {k: jnp.asarray(v) for k, v in reports.items()}
    algorithm = replace(
        algorithm,
        local_update=LocalUpdate(train, lambda count: count, 2),
        memory={name: keep(name) for name in memory},
        reports={name: report(name) for name in reports},
    )
    num_clients = len(jax.tree.leaves(trained)[0])
    model = Model(lambda key, inputs: received, None, None, lambda inputs: layers or {})
    data = client_data(np.zeros((num_clients, 1)), np.zeros(num_clients), [1] * num_clients)
    round = make_round(algorithm, model, num_clients)
    state = round.init(jax.random.key(0), data)
    state = state._replace(clients=state.clients._replace(memory=memory))
    return jax.jit(round.step)(state, data, jax.random.key(0))


def replay_gradients(
    algorithm: Algorithm, start: np.ndarray, tapes: np.ndarray, selected: np.ndarray, num_clients: int
) -> list[State]:
    """The states after each round in which client selected[r, s] meets the gradients tapes[r, s] [steps, d], one by
    one. The recipe keeps its own objective behind the tape in place of the task loss, its first term."""
    algorithm = replace(algorithm, objective=(linear_objective, *algorithm.objective[1:]))
    model, state, states = vector_model(start), None, []
    for tape, cohort in zip(tapes, selected, strict=True):
        everyones = np.zeros((num_clients, *tape.shape[1:]))
        everyones[cohort] = tape
        steps = tape.shape[1]
        inputs = everyones.reshape(-1, tape.shape[-1]) if steps else np.zeros((1, tape.shape[-1]))
        data = client_data(inputs, np.zeros(len(inputs)), [steps] * num_clients)
        round = make_round(algorithm, model, num_clients, participation=fixed_cohort(cohort))
        state = round.init(jax.random.key(0), data) if state is None else state
        state, _ = jax.jit(round.step)(state, data, jax.random.key(0))
        states.append(state)
    return states
