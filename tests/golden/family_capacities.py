"""Sub-networks of different widths: HeteroFL, FedRolex and FjORD."""

from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het import models
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm, LocalUpdate, StatefulGradientRule
from fedjax_het.algorithms import _heterofl, fjord, heterofl
from fedjax_het.client.capacities import Capacities, Window, assign_widths, gradient_at_level, with_capacity
from fedjax_het.client.local_updates import sgd
from fedjax_het.engine.evaluation.norm_statistics import add_common_statistics
from fedjax_het.engine.round.program import make_round
from fedjax_het.problem import Problem
from fedjax_het.server.aggregators import masked_mean
from fedjax_het.types import Context, Model, Trained, Variables
from tests.golden.cases import Case, covers
from tests.golden.replay import client_data, fixed_cohort

LAYERS = {"l0": "dense_0", "l1": "dense_1", "out": "classifier", "linear": "classifier"}


def to_variables(leaves: dict[str, np.ndarray]) -> Variables:
    """Leaves by PyTorch's names, weights [..., out, in] -> variables, kernels [..., in, out]."""
    params = {}
    for name, leaf in leaves.items():
        layer, kind = name.split(".")
        is_matrix = kind == "weight" and not layer.startswith("n")
        leaf = jnp.asarray(np.swapaxes(leaf, -1, -2) if is_matrix else leaf)
        params.setdefault(LAYERS.get(layer, layer), {})["kernel" if is_matrix else kind] = leaf
    return {"params": params}


def stored(case: Case, prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): case[name] for name in case.matching(f"{prefix}*")}


def from_variables(variables: Variables, name: str) -> np.ndarray:
    layer, kind = name.split(".")
    is_matrix = kind == "weight" and not layer.startswith("n")
    leaf = variables["params"][LAYERS.get(layer, layer)]["kernel" if is_matrix else kind]
    return np.swapaxes(leaf, -1, -2) if is_matrix else np.asarray(leaf)


def outer(masks: Variables) -> Variables:
    """Masks per axis, leaves [cohort, axis] -> masks of the leaves, which the whole axes are broadcast over."""

    def product(axes: tuple) -> np.ndarray:
        shaped = [np.reshape(axis, (len(axis), *(-1 if i == k else 1 for i in range(len(axes)))))
                  for k, axis in enumerate(axes)]  # fmt: skip
        return np.prod(np.broadcast_arrays(*shaped), axis=0)

    return {"params": jax.tree.map(product, masks, is_leaf=lambda node: isinstance(node, tuple))}


class Rounds:
    """Rounds of a case: server, models of the cohort, and masks after each, by PyTorch's names."""

    def __init__(self, case: Case, algorithm: Algorithm, model: Model, data: Callable, num_rounds: int, cohorts):
        start, num_clients = stored(case, "in__"), len(data(0).train.count)
        self.server, self.local, self.masks, self.losses = {}, {}, {}, []
        step, state = None, None
        for number in range(num_rounds):
            round = make_round(algorithm, model, num_clients, participation=fixed_cohort(cohorts[number]))
            step = jax.jit(round.step_with_messages)
            state = round.init(make_key(0), data(0)) if state is None else state
            state, metrics, said = step(state, data(number), make_key(0))
            self.losses.append(float(metrics.loss))
            models_ = jax.tree.map(jnp.add, said.received.shared, said.uploads.update)
            masks = outer(said.uploads.reports["mask"])
            for name, leaf in start.items():
                self.server.setdefault(name, []).append(from_variables(state.server.shared, name))
                self.local.setdefault(name, []).append(from_variables(models_, name))
                mask = from_variables(masks, name)
                self.masks.setdefault(name, []).append(np.broadcast_to(mask, (len(mask), *leaf.shape)))
        self.variables = state.server.shared
        for table in (self.server, self.local, self.masks):
            table.update({name: np.stack(values) for name, values in table.items()})


def stored_capacities(rates: np.ndarray, window: Window = "first") -> Capacities:
    """Of rates [clients], or [rounds, clients]."""
    capacities = assign_widths(tuple(np.unique(rates)), window=window)
    table = jnp.asarray(np.searchsorted(np.unique(rates), np.atleast_2d(rates)))
    return capacities._replace(level=lambda client, number: table[number % len(table), client])


def owned_rows(name: str, leaf: np.ndarray, owned: np.ndarray) -> np.ndarray:
    """Entries [cohort, ...] without the head's rows of classes that a client lacks, owned [cohort, class]."""
    if LAYERS.get(name.split(".")[0]) != "classifier":
        return leaf
    return leaf * owned.reshape(owned.shape + (1,) * (leaf.ndim - owned.ndim))


def labelled(inputs: np.ndarray, labels: np.ndarray, owned: np.ndarray):
    """Data whose last examples, which no step reads, have each class that the client owns."""
    extra = [[np.flatnonzero(own)[i % own.sum()] for i in range(owned.shape[1])] for own in owned]
    labels = np.concatenate([labels, extra], axis=1)
    inputs = np.concatenate([inputs, np.zeros((len(inputs), owned.shape[1], inputs.shape[-1]))], axis=1)
    count = labels.shape[1]
    return client_data(inputs.reshape(-1, inputs.shape[-1]), labels.ravel(), [count] * len(labels))


# ---- HeteroFL --------------------------------------------------------------------------------------------------------
def network(case: Case) -> Model:
    start = to_variables(stored(case, "in__"))
    model = models.mlp(case["in__out.weight"].shape[0], tuple(case.meta["hidden"]))
    return model._replace(init=lambda key, inputs: start)


@covers("heterofl", "rounds_*")
def heterofl_rounds(case: Case):
    settings, labels, owned = case.meta, case["Y"], case["label_mask"]
    num_rounds, num_clients, steps, size = labels.shape
    repeated = 12  # every client's batches, repeated to the same number of examples

    def data(number: int):
        batches = [[np.resize(np.flatnonzero(batch >= 0), repeated) for batch in own] for own in labels[number]]
        inputs = np.take_along_axis(case["X"][number], np.asarray(batches)[..., None], axis=2)
        chosen = np.take_along_axis(labels[number], np.asarray(batches), axis=2)
        assert size <= repeated
        return labelled(inputs.reshape(num_clients, -1, inputs.shape[-1]), chosen.reshape(num_clients, -1), owned)

    training = {name: settings[name] for name in ("momentum", "weight_decay")}
    algorithm = _heterofl._compose_heterofl(
        stored_capacities(case["rates"]),
        settings["scaler"],
        settings["masked_cross_entropy"],
        settings["clip"],
        "uniform",
        {**training, "learning_rate": settings["lr"], "batch_size": repeated, "steps": steps, "shuffle": False},
    )
    ours = Rounds(case, algorithm, network(case), data, num_rounds, case["selected"])
    owned = owned[case["selected"]]
    for name in stored(case, "in__"):
        theirs = np.stack([owned_rows(name, mask, own) for mask, own in zip(case[f"mask__{name}"], owned, strict=True)])
        yield case.compare(f"mask__{name}", ours.masks[name], part=lambda mask, theirs=theirs: theirs)
        yield case.compare(f"count__{name}", ours.masks[name].sum(1))
        sent = theirs.astype(bool)
        yield case.compare(f"local__{name}", ours.local[name] * sent, part=lambda leaf, sent=sent: leaf * sent)
        yield case.compare(f"out__{name}", ours.server[name])
    yield case.compare("losses", ours.losses, part=lambda losses: losses.mean((1, 2)))
    wrong = "x_wrong_divide_by_cohort__l0.weight"
    yield (case.compare if case.name == "rounds_s2_all_full" else case.refute)(wrong, ours.server["l0.weight"])
    model, context = network(case), Context(np.ones(len(case["x_test"])), jnp.zeros((), int), make_key(0), False)
    (features, _), _ = model.encode(ours.variables, jnp.asarray(case["x_test"]), context)
    yield case.compare("logits_test", model.classify(ours.variables["params"], features))


def stored_changes(case: Case, window: Window, has_rounds: bool) -> Rounds:
    """Rounds in which training adds stored changes to the sub-network."""
    owned, start = case["label_mask"], stored(case, "in__")
    deltas = stored(case, "delta__")
    changes = to_variables(deltas if has_rounds else {name: delta[None] for name, delta in deltas.items()})

    def train(problem, view, key):
        own = jax.tree.map(lambda leaf, delta: leaf + delta[view.received.round, view.client], view.local, changes)
        return Trained(own, jnp.ones(()), (), {"loss": jnp.zeros(())})

    def narrow(name: str, leaf: np.ndarray, width: float) -> np.ndarray:
        layer, kept = name.split(".")[0], [slice(number) for number in models.narrow_layers(leaf.shape, width)]
        outputs = slice(None) if LAYERS.get(layer) == "classifier" else kept[0]
        return leaf[outputs] if leaf.ndim == 1 or layer in ("l0", "conv1") else leaf[outputs, kept[1]]

    assert [len(leaf) for name, leaf in start.items() if name in ("l0.bias", "l1.bias", "n1.bias", "n2.bias")] == (
        case.meta["hidden"]
    )

    def make_model(width: float) -> Model:
        parts = {name: narrow(name, leaf, width) for name, leaf in start.items()}
        return Model(lambda key, inputs: to_variables(parts), None, None, lambda inputs: {}, narrowed=make_model)

    model = make_model(1.0)
    algorithm = replace(
        heterofl(),
        local_update=with_capacity(
            LocalUpdate(train, lambda count: count, 1), stored_capacities(case["rates"], window), owns_labels=True
        ),
    )
    num_clients = len(owned)
    data = labelled(np.zeros((num_clients, 0, 1)), np.zeros((num_clients, 0), int), owned)
    selected = case["selected"] if has_rounds else np.arange(num_clients)[None]
    return Rounds(case, algorithm, model, lambda number: data, len(selected), selected)


class _Norm(nn.Module):
    """A static norm alone, whose outputs are the features."""

    def setup(self):
        self.norm, self.classifier = models.norm("static"), nn.Dense(2)

    def encode(self, inputs, mask, is_training):
        return self.norm(inputs, mask, is_training)

    def classify(self, features):
        return self.classifier(features)


@covers("heterofl", "sbn_*")
def static_batch_norm(case: Case):
    """Every batch is that of a client with as many examples."""
    assert case.meta["note"]
    inputs, sizes = case["x"], case["batch_sizes"]
    rows = np.concatenate([batch[:size] for batch, size in zip(inputs, sizes, strict=True)])
    data = client_data(rows, np.zeros(len(rows), int), sizes)
    problem = Problem(models.from_flax(_Norm()), (), lambda stored: stored)
    variables = problem.model.init(make_key(0), jnp.asarray(rows[:1]))
    assert set(variables) == {"params"}
    completed = add_common_statistics(problem, variables, jnp.int32(0), data, inputs.shape[1])
    statistics = completed["batch_stats"]["norm"]
    yield case.compare("running_mean", statistics["mean"])
    yield case.compare("running_var", statistics["var"])
    yield case.refute("pooled_var", statistics["var"])
    if case.name == "sbn_0":
        yield case.compare("pooled_mean", statistics["mean"])
    else:
        yield case.refute("pooled_mean", statistics["mean"])


@covers("heterofl", "combine_*")
def heterofl_combine(case: Case):
    ours = stored_changes(case, "first", has_rounds=False)
    for name in stored(case, "in__"):
        owned = owned_rows(name, case[f"mask__{name}"], case["label_mask"])
        yield case.compare(f"mask__{name}", ours.masks[name][0], part=lambda mask, owned=owned: owned)
        yield case.compare(f"out__{name}", ours.server[name][0])


# ---- FedRolex --------------------------------------------------------------------------------------------------------
@covers("fedrolex", "*")
def fedrolex_rounds(case: Case):
    is_static = case.name.startswith("static")
    released = stored_changes(case, "first" if is_static else "down", has_rounds=True)
    ours = released if is_static else stored_changes(case, "up", has_rounds=True)
    owned = case["label_mask"][case["selected"]]
    for name in stored(case, "in__"):
        theirs = np.stack([owned_rows(name, mask, own) for mask, own in zip(case[f"mask__{name}"], owned, strict=True)])
        yield case.compare(f"mask__{name}", released.masks[name], part=lambda mask, theirs=theirs: theirs)
        yield case.compare(f"plain_counts__{name}", released.server[name])
        yield case.compare(f"out__{name}", ours.server[name])
    for layer in ("conv1", "conv2"):
        yield case.compare(f"window_{layer}", released.masks[f"{layer.replace('conv', 'n')}.bias"])
    is_plain = case.meta["weighting"] == "avg"
    for name, apart in case.meta["released_minus_plain"].items():
        if apart == 0:
            yield case.compare(f"released__{name}", released.server[name])
        else:
            assert not (is_plain and name.startswith("conv"))
            assert abs(np.abs(case[f"released__{name}"] - released.server[name]).max() - apart) < 1e-6
            case.excuse(f"released__{name}", "weights by counters that depend on the order of clients")


# ---- FjORD -----------------------------------------------------------------------------------------------------------
@covers("fjord", "*")
def fjord_rounds(case: Case):
    settings, labels, counts, widths = case.meta, case["Y"], case["n_samples"], case["p_s"]
    num_rounds, _, steps, size = labels.shape
    levels = jnp.asarray(np.searchsorted(widths, case["p_max"]))
    drawn = jnp.asarray(np.searchsorted(widths, case["p"]))
    capacities = assign_widths(tuple(widths))._replace(level=lambda client, number: levels[client])
    kept = steps * size * counts  # in the ratios of the sizes; no step reads the copies

    def update(number, problem, params, state, batch, view, key):
        level = drawn[view.received.round, view.client, number]
        result = gradient_at_level(capacities, level, settings["kd"])(problem, params, state, batch, view, key)
        return result, number + 1

    def data(number: int):
        inputs = [np.resize(own.reshape(-1, own.shape[-1]), (n, own.shape[-1]))
                  for own, n in zip(case["X"][number], kept, strict=True)]  # fmt: skip
        return client_data(
            np.concatenate(inputs),
            np.concatenate([np.resize(own, n) for own, n in zip(labels[number], kept, strict=True)]),
            kept,
        )

    training = {name: settings[name] for name in ("momentum", "weight_decay")}
    rule = StatefulGradientRule(lambda view: jnp.zeros((), int), update)
    local = sgd(settings["lr"], **training, batch_size=size, steps=steps, shuffle=False, gradient=rule)
    algorithm = replace(fjord(), local_update=with_capacity(local, capacities), aggregator=masked_mean("samples"))
    ours = Rounds(case, algorithm, network(case), data, num_rounds, case["selected"])
    for name in stored(case, "in__"):
        sent = ours.masks[name]
        sizes = counts[case["selected"]].reshape(num_rounds, -1, *[1] * (sent.ndim - 2))
        yield case.compare(f"weight_sum__{name}", (sent * sizes).sum(1))
        yield case.compare(f"local__{name}", ours.local[name] * sent, part=lambda leaf, sent=sent: leaf * sent)
        yield case.compare(f"out__{name}", ours.server[name])

    def mean_loss(losses: np.ndarray) -> np.ndarray:
        total = np.where(np.isnan(losses), 0, losses).sum(-1).mean(-1)
        return (total * counts).sum(-1) / counts.sum()

    yield case.compare("losses", ours.losses, part=mean_loss)
