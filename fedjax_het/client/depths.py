"""Clients of different depths: each trains the first layers of the common network, up to an exit (DepthFL)."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.number_table import read_client_numbers
from fedjax_het.algorithm import LocalUpdate, Personalization, Problem, Term
from fedjax_het.client.local_updates import wrap_training
from fedjax_het.errors import InputError
from fedjax_het.labels import cross_entropies, mean_over_labels
from fedjax_het.problem import ForwardPass
from fedjax_het.types import Array, ClientData, ClientView, Key, Model, ModelPart, Params, Trained, Variables
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments

Teacher = Literal["others", "last"]
_SMOOTHING, _LAST = 1e-7, "classifier"


class Depths(NamedTuple):
    """The depths of all clients.

    Args:
        of_client: Client id -> the number of its exits.
        places: The numbers of exits of clients 0, 1, ..., which are repeated for further clients.
        check: Raises InputError if there is no depth for so many clients.
    """

    of_client: Callable[[Array], Array]
    places: tuple[int, ...]
    check: Callable[[int], None]


@validate_arguments
def assign_depths(depths: Sequence[Count] | str) -> Depths:
    """Give each client a depth d: it has the first d exits of `models.with_exits`, and the layers in front of them.

    Args:
        depths: Client i has depths[i mod len(depths)]; or a CSV file with the columns client, depth, one line per
            client. Larger numbers than that of the exits are all exits.

    Raises:
        InputError: The file is malformed, or the list is empty.
    """
    own, check = read_client_numbers("depths", "depth", Count, depths)
    places = tuple(map(int, own))
    return Depths(lambda client: jnp.asarray(places, jnp.int32)[client % len(places)], places, check)


def with_depth(local_update: LocalUpdate, depths: Depths) -> LocalUpdate:
    """Train the client's layers, and leave all others as received.

    Results: results["mask"], the trained shared parameters, for `aggregators.masked_mean`.

    Args:
        local_update: Any local update whose objective reads the client's exits alone, see `exits_cross_entropy`.
        depths: The depth of each client.
    """

    def train(rule: Callable[..., Trained], problem: Problem, view: ClientView, key: Key) -> Trained:
        trained, depth = rule(problem, view, key), depths.of_client(jnp.asarray(view.client))
        if set(view.start) != {"params"}:
            raise InputError(
                "model: its batch norms keep running statistics, which clients lack for layers that they do not have. "
                "Use another norm."
            )
        is_own = {path: first <= depth for path, first in _depths_of_leaves(problem, view.data, view.start).items()}
        by_path = tree.leaves_by_path(view.local)
        variables = tree.from_paths(
            {p: jnp.where(is_own[p], leaf, by_path[p]) for p, leaf in tree.leaves_by_path(trained.variables).items()}
        )
        masks = tree.from_paths({p: _mask_axes(is_own[p], leaf.ndim) for p, leaf in by_path.items()})
        _, sent = tree.partition_like(masks, view.received.shared)
        return trained._replace(variables=variables, results={**trained.results, "mask": sent["params"]})

    def count_parts(problem: Problem, data: ClientData, num_clients: int) -> list[tuple[int, ModelPart]]:
        inputs = problem.input_shape(data)
        whole = jax.eval_shape(lambda x: problem.model.init(make_key(0), x), inputs)
        first, by_path = _depths_of_leaves(problem, data, whole), tree.leaves_by_path(whole)
        clients = Counter(np.resize(depths.places, num_clients).tolist())
        return [
            (count, {path: leaf.shape for path, leaf in by_path.items() if first[path] <= depth})
            for depth, count in clients.items()
        ]

    return wrap_training(local_update, train)._replace(count_parts=count_parts)


def own_exits(depths: Depths) -> Personalization:
    """The network that averages the logits of the client's exits, without further training."""

    def personalize(problem: Problem, view: ClientView, key: Key) -> Variables:
        params = view.start["params"]
        names = exits_in_order(problem.model, params, problem.input_shape(view.data))
        depth = jnp.minimum(depths.of_client(jnp.asarray(view.client)), len(names))
        weights = {name: (i < depth) * len(names) / depth for i, name in enumerate(names)}
        return {**view.start, "params": scale_exits(params, weights)}

    return personalize


@validate_arguments
def exits_cross_entropy(
    depths: Depths,
    weight: NonNegative = 1.0,
    ramp: CountOrZero = 300,
    teacher: Teacher = "others",
    temperature: Positive = 3.0,
) -> Term:
    """The cross-entropy of every exit of the client, and divergences between its exits.

        others:  sum_i CE(z_i, y) + w_t/(d - 1) sum_i sum_{j != i} KL(q_j || softmax z_i),   i, j <= d
                 q_j = softmax(z_j) + 1e-7, constant in the gradient,   w_t = w exp(-5 (1 - min(t, T)/T)^2)
        last:    sum_i 2i/(d (d + 1)) [ CE(z_i, y) + w_t tau^2/C KL(softmax(z_d/tau) || softmax(z_i/tau)) ]
                 w_t = w from round T on, before 0

    Reads: view.client, received.round.

    Args:
        depths: The depth d of each client.
        weight: The largest weight w of the divergences (1 in DepthFL's code; .05 or 0 in ScaleFL's).
        ramp: The number T of rounds until it is reached (300 in DepthFL's code; a quarter of all in ScaleFL's).
        teacher: "others" (DepthFL) or "last" (ScaleFL).
        temperature: The temperature tau of "last" (3 in ScaleFL's code).

    References:
        Kim et al., DepthFL: Depthwise Federated Learning for Heterogeneous Clients, ICLR 2023; code adap/flower,
        baselines/depthfl. Ilhan, Su and Liu, ScaleFL, CVPR 2023; code git-disl/scale-fl.
    """

    def exits_cross_entropy(forward: ForwardPass) -> Array:
        view, model, labels = forward.view, forward.problem.model, forward.batch.labels
        names = exits_in_order(model, forward.params, forward.batch.inputs)

        def classify(weights: Array) -> Array:
            params = scale_exits(forward.params, dict(zip(names, weights, strict=True)))
            return model.classify(params, forward.outputs.features)

        logits = jax.vmap(classify)(len(names) * jnp.eye(len(names)))
        depth, done = depths.of_client(jnp.asarray(view.client)), view.received.round
        depth = jnp.minimum(depth, len(names))
        if teacher == "others":
            rise = jnp.exp(-5 * (1 - jnp.minimum(done, ramp) / ramp) ** 2) if ramp else 1.0
            losses = mutual_losses(logits, labels, depth, weight * rise)
        else:
            losses = last_exit_losses(logits, labels, depth, jnp.where(done >= ramp, weight, 0), temperature)
        return mean_over_labels(losses, labels, forward.batch.mask)

    return exits_cross_entropy


def mutual_losses(logits: Array, labels: Array, depth: Array | int, weight: Array | float) -> Array:
    """The losses of "others" in `exits_cross_entropy`, with logits [exits, batch, class]: [batch]."""
    chances = jax.nn.log_softmax(logits)
    targets = jax.lax.stop_gradient(jax.nn.softmax(logits)) + _SMOOTHING
    entropy = jnp.sum(targets * jnp.log(targets), axis=-1)
    divergences = entropy[:, None] - jnp.einsum("jbc,ibc->jib", targets, chances)  # of exit i from exit j
    is_own = jnp.arange(len(logits)) < depth
    pairs = (is_own[:, None] & is_own[None, :] & ~jnp.eye(len(logits), dtype=bool)).astype(logits.dtype)
    mutual = jnp.einsum("ji,jib->b", pairs, divergences) / jnp.maximum(depth - 1, 1)
    return is_own.astype(logits.dtype) @ _cross_entropies(logits, labels) + weight * mutual


def last_exit_losses(
    logits: Array, labels: Array, depth: Array | int, weight: Array | float, temperature: float
) -> Array:
    """The losses of "last" in `exits_cross_entropy`, with logits [exits, batch, class]: [batch]."""
    chances, number = jax.nn.log_softmax(logits / temperature), jnp.arange(1, len(logits) + 1)
    last = chances[jnp.asarray(depth) - 1]
    divergences = jnp.mean(jnp.exp(last) * (last - chances), axis=-1)
    shares = (jnp.where(number <= depth, number, 0) / (depth * (depth + 1) / 2)).astype(logits.dtype)
    return shares @ (_cross_entropies(logits, labels) + weight * temperature**2 * divergences)


def _cross_entropies(logits: Array, labels: Array) -> Array:
    return jax.vmap(cross_entropies, (0, None))(logits, labels)


def _depths_of_leaves(problem: Problem, data: ClientData, whole: Variables) -> dict[str, int]:
    """The smallest depth of a client that has a leaf, by path."""
    inputs, params = problem.input_shape(data), whole["params"]
    names, layers = exits_in_order(problem.model, params, inputs), list(problem.model.layers(inputs))

    def depth(path: str) -> int:
        _, top, *rest = path.split("/")
        if top in ("exits", names[-1]):
            return 1 + names.index(rest[0] if top == "exits" else top)
        place = layers.index(top)
        return 1 + sum(place >= layers.index(name) for name in names[:-1])

    return {path: depth(path) for path in tree.paths(whole)}


def _mask_axes(is_own: Array, num_axes: int) -> tuple[Array, ...]:
    return tuple(jnp.reshape(is_own if axis == 0 else True, (1,)) for axis in range(num_axes))


def exits_in_order(model: Model, params: Params, inputs: Array) -> list[str]:
    """The names of the exits from the first to the last, which is "classifier"."""
    return [name for name in model.layers(inputs) if name in params.get("exits", {})] + [_LAST]


def scale_exits(params: Params, weights: Mapping[str, Array]) -> Params:
    """The parameters with the logits of each exit multiplied by its weight."""

    def scale(name: str, head: Params) -> Params:
        return jax.tree.map(lambda leaf: weights[name].astype(leaf.dtype) * leaf, head)

    exits = {name: scale(name, head) for name, head in params.get("exits", {}).items()}
    return {**params, _LAST: scale(_LAST, params[_LAST])} | ({"exits": exits} if exits else {})
