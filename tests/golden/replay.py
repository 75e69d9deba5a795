"""Replay of stored numbers through an aggregator alone, or through a whole compiled round."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Aggregator, Algorithm, LocalUpdate, Memory, Term
from fedjax_het.client.optimizers import torch_sgd
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.round import server_step
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import make_round
from fedjax_het.engine.round.records import RoundMetrics
from fedjax_het.engine.round.update_plan import pack_for
from fedjax_het.problem import ForwardPass
from fedjax_het.types import (
    ClientData,
    Examples,
    Model,
    PyTree,
    Rows,
    State,
    Trained,
    Variables,
)
from tests.golden.cases import Case
from tests.views import server_view


def aggregate(aggregator: Aggregator, stack: PyTree, num_examples=None, reports=None, round: int = 0, state=None):
    """(the update, the aggregator's state) that an aggregator makes of stacked updates, everyone present."""
    stack = pack_for(aggregator, jax.tree.map(jnp.asarray, stack))
    num_clients = jax.tree.leaves(stack)[0].shape[0]
    template = jax.tree.map(lambda x: jnp.zeros_like(x[0]), stack)
    state = aggregator.init(template, num_clients) if state is None else state

    @jax.jit
    def run(state, reports, stack, num_examples, round):
        view = server_view(num_clients, reports, stack, template, num_examples, round)
        return server_step.aggregate(aggregator, None, state, view)

    out, state = run(state, reports, stack, num_examples, round)
    return out.update, state


def combine(aggregator: Aggregator, stack: np.ndarray, num_examples=None, round: int = 0) -> np.ndarray:
    """The same for one vector per client, [m, d] -> [d]."""
    return aggregate(aggregator, {"params": {"w": stack}}, num_examples, round=round)[0]["params"]["w"]


def combine_all(aggregators: Mapping[str, Aggregator], stack: np.ndarray, num_examples=None) -> dict[str, np.ndarray]:
    """The result of each aggregator for one vector per client, in one compiled program."""
    size, template = len(stack), {"params": {"w": jnp.zeros(stack.shape[1])}}

    @jax.jit
    def run(stack, num_examples):
        view = server_view(size, updates={"params": {"w": stack}}, shared=template, num_examples=num_examples)
        return {
            name: server_step.aggregate(rule, None, rule.init(template, size), view)[0].update["params"]["w"]
            for name, rule in aggregators.items()
        }

    return {name: np.asarray(values) for name, values in run(jnp.asarray(stack), num_examples).items()}


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
    state = jax.jit(round.init)(make_key(0), data)
    state = state._replace(clients=state.clients._replace(memory=memory))
    return jax.jit(round.step)(state, data, make_key(0))


def replay_gradients(
    algorithm: Algorithm, start: np.ndarray, tapes: np.ndarray, selected: np.ndarray, num_clients: int
) -> list[State]:
    """The states after each round in which client selected[r, s] meets the gradients tapes[r, s] [steps, d], one by
    one. The recipe keeps its own objective behind the tape in place of the task loss, its first term."""
    algorithm = replace(algorithm, objective=(linear_objective, *algorithm.objective[1:]))
    return replay_rounds(algorithm, vector_model(start), tapes, np.zeros(tapes.shape[:3]), selected, num_clients)[0]


class Replay(NamedTuple):
    """The results of some rounds: the state after each, and the final models of its participants."""

    states: list[State]
    trained: list[Variables]  # leaves [cohort, ...]

    def weights(self) -> np.ndarray:
        """The server's parameters "w" after each round."""
        return np.stack([state.server.shared["params"]["w"] for state in self.states])

    def local(self) -> np.ndarray:
        """The participants' parameters "w", [rounds, cohort, ...]."""
        return np.stack([variables["params"]["w"] for variables in self.trained])


def rate_decay(factor: float) -> optax.Schedule:
    """factor^round, in the precision of the case; optax computes its schedules in float32."""
    return lambda number: jnp.asarray(factor, float) ** number


def quadratic_objective(forward: ForwardPass):
    """w.H w / 2 + t.w, for a batch of one example that holds t [d] and H [d, d] in a row."""
    weights = forward.params["w"]
    size = weights.shape[0]
    linear, hessian = forward.batch.inputs[0, :size], forward.batch.inputs[0, size:].reshape(size, size)
    return forward.batch.mask[0] * (weights @ hessian @ weights / 2 + linear @ weights)


def softmax_objective(num_classes: int) -> Callable[[ForwardPass], jax.Array]:
    """The mean cross-entropy of X W^T + b, where the weights are W [class, input], row by row, and then b."""

    def loss(forward: ForwardPass):
        weights = forward.params["w"]
        matrix, bias = weights[:-num_classes], weights[-num_classes:]
        logits = forward.batch.inputs @ matrix.reshape(num_classes, -1).T + bias
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, forward.batch.labels))

    return loss


class StoredLosses(NamedTuple):
    """The losses of all steps of a case."""

    objective: Term
    inputs: np.ndarray  # [rounds, cohort, examples, ...]
    labels: np.ndarray
    steps: int
    batch_size: int


def stored_losses(case: Case) -> StoredLosses:
    """The losses that a case stores, see feddyn's README: tapes, tapes with hessians, or inputs with labels."""
    if "inputs" in case:
        rounds, cohort, steps, size, _ = case["inputs"].shape
        inputs, labels = (case[name].reshape(rounds, cohort, steps * size, *case[name].shape[4:]) for name in
                          ("inputs", "labels"))  # fmt: skip
        return StoredLosses(softmax_objective(int(case["num_classes"])), inputs, labels, steps, size)
    inputs, objective = case["tapes"], linear_objective
    if "hessians" in case:
        hessians = case["hessians"].reshape(*inputs.shape[:3], -1)
        inputs, objective = np.concatenate([inputs, hessians], axis=-1), quadratic_objective
    return StoredLosses(objective, inputs, np.zeros(inputs.shape[:3]), inputs.shape[2], 1)


def replay_case(case: Case, build: Callable[..., Algorithm], counts: np.ndarray | None = None) -> Replay:
    """The replay of a case that stores the losses of all steps.

    Args:
        case: The case: x0, n_clients, selected, and what `stored_losses` reads.
        build: The algorithm from the settings of its local training: batch_size, steps, shuffle.
        counts: The number of examples of each client, at least its number of steps; None: one per step.
    """
    objective, inputs, labels, steps, size = stored_losses(case)
    algorithm = build(batch_size=size, shuffle=False, **({} if counts is None else {"steps": steps}))
    algorithm = replace(algorithm, objective=(objective, *algorithm.objective[1:]))
    model, num_clients = vector_model(case["x0"]), int(case["n_clients"])
    return replay_rounds(algorithm, model, inputs, labels, case["selected"], num_clients, counts)


def replay_rounds(
    algorithm: Algorithm,
    model: Model,
    inputs: np.ndarray,
    labels: np.ndarray,
    selected: np.ndarray,
    num_clients: int,
    counts: np.ndarray | None = None,
    layout: Layout = vmapped,
) -> Replay:
    """Run rounds in which client selected[r, s] has the examples inputs[r, s], labels[r, s].

    All rounds are one program. Given counts are those that clients report; no step may read beyond the
    examples that are stored.
    """
    stored = inputs.shape[2]
    counts = np.full(num_clients, stored) if counts is None else np.asarray(counts, int)
    index = stored * np.arange(num_clients)[:, None] + np.minimum(np.arange(max([*counts, 1])), max(stored - 1, 0))
    table, nothing = Rows(index.astype(np.int32), counts.astype(np.int32)), rows([0] * num_clients)

    @jax.jit
    def step(state: State, data: ClientData, cohort):
        round = make_round(algorithm, model, num_clients, participation=fixed_cohort(cohort), layout=layout)
        state, _, said = round.step_with_messages(state, data, make_key(0))
        return state, jax.tree.map(jnp.add, said.received.shared, said.uploads.update)

    state, states, trained = None, [], []
    for number, cohort in enumerate(selected):
        everyones = np.zeros((num_clients, *inputs.shape[2:])), np.zeros((num_clients, *labels.shape[2:]))
        everyones[0][cohort], everyones[1][cohort] = inputs[number], labels[number]
        flat = [arrays.reshape(-1, *arrays.shape[2:]) if stored else arrays[:, :0].sum(1) for arrays in everyones]
        data = ClientData(Examples(jnp.asarray(flat[0]), jnp.asarray(flat[1], jnp.int32)), table, nothing, nothing)
        if state is None:
            state = jax.jit(make_round(algorithm, model, num_clients).init)(make_key(0), data)
        state, models = step(state, data, jnp.asarray(cohort))
        states.append(state)
        trained.append(models)
    return Replay(states, trained)
