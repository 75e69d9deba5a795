"""A small federation with every unusual property, and functions that run an algorithm on it."""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from fedjax_het import data, models, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, OutputMixture
from fedjax_het.algorithms import ALGORITHMS, FAMILIES
from fedjax_het.data import Federation
from fedjax_het.engine.evaluation.evaluate import evaluated_model
from fedjax_het.engine.evaluation.personal_means import mean_personal_variables
from fedjax_het.engine.execution.cost import traffic_per_client
from fedjax_het.engine.parallel.layout import Layout, vmapped
from fedjax_het.engine.round.participation import Participation
from fedjax_het.engine.round.program import Round, make_round
from fedjax_het.types import ClientData, Context, Model, PyTree, Rows, ServerState, State, Variables

TINY = {"learning_rate": 0.05, "batch_size": 8}
ADAPTERS, PROMPTS, CAPACITIES = (
    [algorithm.__name__ for algorithm in FAMILIES[family]]
    for family in ("Low-rank adapters", "Prompts of CLIP", "Different capacities")
)
PRODUCTS = ("flora", "flexlora")  # the server averages products of adapters; their factors are not determined
# FPL's contrast has a gradient as 1 / temperature: with the published .02, eight features jump from round to round.
# Contexts of two vectors make the texts of three classes short. Adaptive-FedAvg's rate falls as 1 / round. The
# one step of gradient tracking reads all examples.
OWN = {
    **{"ada_fedavg": {"learning_rate": 0.3}, "fpl": {"temperature": 0.1}},
    **{"feddrift": {"num_models": 6, "rounds_per_step": 2}},
    **{"dsgt": {"batch_size": 32}, **{name: {"num_tokens": 2} for name in PROMPTS}},
    **{"feddf": {"distillation_steps": 3, "distillation_batch_size": 8}, "fedgen": {"hidden": 8, "noise": 4}},
    **{"fedmd": {"sample_size": 12, "digest_batch_size": 8}, "fedtgp": {"server_epochs": 5, "lam": 1.0}},
}
CLIP = {
    **{"features": 8, "layers": 1, "heads": 2, "patch": 2, "projection": 6, "text_features": 8, "text_layers": 1},
    **{"text_heads": 2, "text_vocabulary": 16, "text_max_length": 24, "texts": "tower"},
}


@functools.cache
def federation(num_clients: int = 5, **options) -> Federation:
    """Ragged clients of small images; the first has fewer examples than a batch."""
    return data.toy(num_clients=num_clients, image=(6, 6, 1), examples_per_client=(7, 24), **options)


def supply(chosen: Algorithm, federation: Federation) -> Federation:
    """The federation, with public examples if the algorithm reads them."""
    if not getattr(chosen, "reads_public", False) or federation.examples.public is not None:
        return federation
    return federation.with_public(federation.examples.inputs[:32])


def federation_of(name: str) -> Federation:
    return supply(algorithm(name), federation())


def model(norm: str = "batch"):
    return models.mlp(num_classes=3, hidden=(8,), norm=norm)


def network_of(name: str, norm: str = "batch") -> Model:
    """A small network that the algorithm supports."""
    if name in PROMPTS:
        return models.clip(3, prompts=make_prompts(3), **CLIP)
    return model("none" if name in CAPACITIES else norm)


def make_prompts(num_classes: int) -> list[list[int]]:
    """Tokens of a text of each class: start, name, full stop, end."""
    return [[1, 3 + number, 2, 15] for number in range(num_classes)]


def algorithm(name: str, **options) -> Algorithm:
    return ALGORITHMS[name](**{**TINY, **OWN.get(name, {}), **options})


def compose(
    name: str,
    *,
    layout: Layout = vmapped,
    participation: Participation | None = None,
    norm: str = "batch",
    num_clients: int = 5,
    num_training: int | None = None,
    options: dict | None = None,
    change: dict | None = None,
    prepare: Callable | None = None,
    network: Model | None = None,
) -> Round:
    """A round of a registered algorithm, with some of its slots replaced."""
    built = replace(algorithm(name, **(options or {})), **(change or {}))
    prepare = prepare or federation().prepare
    network = network or network_of(name, norm)
    return make_round(
        built,
        network,
        num_clients,
        num_training=num_training,
        participation=participation,
        layout=layout,
        prepare=prepare,
    )


@functools.cache
def plain_round(name: str) -> Round:
    """The unchanged round of an algorithm, compiled once."""
    return compose(name)


@functools.cache
def _compiled(round: Round):
    return jax.jit(round.step)


def run(
    round: Round,
    rounds: int = 3,
    data: ClientData | None = None,
    seed: int = 0,
    change: Callable[[State], State] = lambda state: state,
) -> tuple[State, list]:
    """(the last state, the metrics of every round).   change: of the state before the first."""
    data, key = supply(round.algorithm, federation()).data if data is None else data, make_key(seed)
    step, state, metrics = _compiled(round), change(round.init(key, data)), []
    for _ in range(rounds):
        state, measured = step(state, data, key)
        metrics.append(jax.tree.map(np.asarray, measured))
    return state, metrics


def traffic(round: Round) -> tuple[int, float]:
    """(Bytes received, bits sent) per client and round."""
    data, key = federation().data, make_key(0)
    messages = jax.eval_shape(round.step_with_messages, jax.eval_shape(round.init, key, data), data, key)[2]
    return traffic_per_client(round.algorithm, round.problem, data, federation().num_clients, messages)


def train(name: str, rounds: int = 2, norm: str = "none", **options) -> Variables:
    """The server's variables after some rounds of an algorithm with these options."""
    return run(compose(name, norm=norm, options=options), rounds=rounds)[0].server.shared


IN_ORDER = Participation(lambda n: 5, lambda key, n, number: (jnp.arange(5), jnp.ones(5, bool)))
"""All clients, which is known in the running program alone."""
QUICK = ("fedavg", "fedbn", "fedld")  # sums, personal leaves, Gram matrices
REPRESENTATIVE = (*QUICK, "scaffold", "fediir", "harmofl", "fedsr")  # also memories, surveys and adapted models
# FedPAC, which replies to each client, takes as long as all of these together.
FAMILIAR = (*REPRESENTATIVE, *(algorithms[0].__name__ for algorithms in FAMILIES.values()))


def all_quick_for(
    *quick: str, extended: Sequence[str] = REPRESENTATIVE, others: pytest.MarkDecorator = pytest.mark.slow
) -> pytest.MarkDecorator:
    """Parametrize a test by the names of all algorithms, and mark those that are not among the quick ones."""
    marks = dict.fromkeys(extended, pytest.mark.extended) | dict.fromkeys(quick, ())
    return pytest.mark.parametrize("name", [pytest.param(name, marks=marks.get(name, others)) for name in ALGORITHMS])


one_of_each_family = all_quick_for(*QUICK, extended=FAMILIAR)
every_algorithm = all_quick_for(*QUICK, others=pytest.mark.extended)
every_algorithm_slowly = all_quick_for(*QUICK)
ROUNDING = 1e-5


@functools.cache
def reference_run(name: str):
    """(state, metrics) of three rounds of the plain layout."""
    return run(plain_round(name))


@functools.cache
def rounding_tolerance(name: str) -> float:
    """The allowed distance between runs that differ only in rounding.

    ROUNDING, or a few times as far as the last bit of some initial weights carries where that is more: FedAdagrad's
    steps eta D / (sqrt(v) + tau) multiply an error of D by eta / tau = 100 where D is small. One choice of weights
    in six may carry a tenth as far as another (FedGAMMA, SCAFFOLD), so that the farthest of several counts.
    """

    def nudged(seed: int, state: State) -> State:
        rng = np.random.default_rng(seed)

        def next_up(leaf: jax.Array) -> np.ndarray:
            values = np.asarray(leaf)
            return np.where(rng.random(values.shape) < 0.5, np.nextafter(values, np.float32(np.inf)), values)

        shared = state.server.shared | {"params": jax.tree.map(next_up, state.server.shared["params"])}
        return state._replace(server=state.server._replace(shared=shared))

    ends = (run(plain_round(name), change=functools.partial(nudged, seed))[0] for seed in range(5))
    return max(ROUNDING, *(4 * difference(reference_run(name)[0], end) for end in ends))


def task_loss(round: Round, state: State) -> float:
    """Cross-entropy of the server's model on every example, without other terms of the objective; of several models, of
    their mean logits."""
    examples = federation().data.examples
    inputs, labels = federation().prepare(examples.inputs), examples.labels
    fixed = state.server.frozen, state.server.base
    personal, rule = mean_personal_variables(state.clients, federation().num_clients), round.algorithm.models
    if rule:
        mixture = evaluated_model(round.algorithm, round.problem, state.server, personal)
    else:
        mixture = OutputMixture((tree.merge(*fixed, state.server.shared, personal),), (1.0,))
    context = Context(np.ones(len(labels), np.float32), state.server.round, make_key(0), False)
    network = round.problem.model
    logits = 0.0
    for variables, weight in zip(mixture.models, mixture.weights, strict=True):
        (features, _), _ = network.encode(variables, inputs, context)
        logits += weight * network.classify(variables["params"], features)
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean())


def difference(a: PyTree, b: PyTree) -> float:
    """||a - b|| / ||a|| over all leaves together."""
    pairs = list(zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))
    flat_a, flat_b = (np.concatenate([np.ravel(pair[i]).astype(np.float64) for pair in pairs]) for i in (0, 1))
    return float(np.linalg.norm(flat_a - flat_b) / max(np.linalg.norm(flat_a), 1e-12))


def params_of(name: str, round: Round, server: ServerState, shared: Variables) -> Variables:
    """The shared parameters; those of the network with merged adapters where only products are determined."""
    if name not in PRODUCTS:
        return shared["params"]
    return models.merge_adapters(round.problem.model, tree.merge(server.frozen, server.base, shared))["params"]


def without_padding(state: State, num_clients: int = 5) -> State:
    """A simulation's state without the rows after the last client, which depend on the layout."""
    return state._replace(clients=jax.tree.map(lambda x: np.asarray(x)[:, :num_clients], state.clients))


def is_equal(a: PyTree, b: PyTree) -> bool:
    return all(
        np.array_equal(np.asarray(x), np.asarray(y), equal_nan=True)
        for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    )


def map_rows(data: ClientData, change: Callable[[Rows], Rows]) -> ClientData:
    return data._replace(train=change(data.train), valid=change(data.valid), test=change(data.test))
