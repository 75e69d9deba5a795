"""FedGen's generator and FedTGP's prototypes, which the server trains, and the clients' losses."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithms import fedtgp
from fedjax_het.client.objectives import cross_entropy, generated_features
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.generation import generate, join_running, split_running
from fedjax_het.problem import Problem
from fedjax_het.server.aggregators._generator import (
    GeneratorTraining,
    generator_loss,
    generator_optimizer,
    train_generator,
)
from fedjax_het.server.prototypes import min_gap, prototype_loss, trained_prototypes
from fedjax_het.types import Batch, PyTree
from tests.golden.cases import Case, covers
from tests.golden.family_distillation import compare_params, make_network, read_params
from tests.golden.networks import dense, nested, tanh_network
from tests.views import client_view, server_view

KEY = make_key(0)


# ---- FedGen ----------------------------------------------------------------------------------------------------------
GENERATOR = {
    "fc_layers.0.weight": ("hidden", "kernel"),
    "fc_layers.0.bias": ("hidden", "bias"),
    "fc_layers.1.weight": ("norm", "scale"),
    "fc_layers.1.bias": ("norm", "bias"),
    "fc_layers.1.running_mean": ("norm", "mean"),
    "fc_layers.1.running_var": ("norm", "variance"),
    "representation_layer.weight": ("output", "kernel"),
    "representation_layer.bias": ("output", "bias"),
}


def read_generator(case: Case, prefix: str) -> PyTree:
    generator: PyTree = {"hidden": {}, "norm": {}, "output": {}}
    for name, (layer, leaf) in GENERATOR.items():
        generator[layer][leaf] = jnp.asarray(case[f"{prefix}{name}"]).T
    return generator


@covers("fedgen", "server_*")
def generator_training(case: Case):
    settings, start = case.meta, read_generator(case, "gen_in__")
    settings.confirm(adam="(.9,.999,1e-8), decay added to the gradient", noise_dim=case["eps"].shape[-1])
    settings.confirm(hidden=start["hidden"]["bias"].size, latent=start["output"]["bias"].size)
    counts = case["label_counts"]
    yield case.compare("label_weights", (counts / counts.sum(axis=0)).T)
    heads = [read_params(case, f"user{i}__")["classifier"] for i in range(len(counts))]
    student, optimizer = read_params(case, "student__")["classifier"], generator_optimizer(settings["weight_decay"])
    for prefix, label_weights in (("gen", "example"), ("released", "batch")):
        progress = GeneratorTraining(*split_running(start), optimizer.init(split_running(start)[0]))
        states, losses = [], []
        for noise, labels in zip(case["eps"], case["y"], strict=True):

            def loss(features, noise=noise, labels=labels, label_weights=label_weights):
                teachers = jnp.stack([dense(head, features) for head in heads])
                weights = settings["alpha"], settings["eta"], settings["beta"]
                shares = jnp.asarray(case["label_weights"])
                own = dense(student, features)
                return generator_loss(features, noise, teachers, own, labels, shares, *weights, label_weights)

            features, _ = generate(join_running(*progress[:2]), noise, labels, is_training=True)
            losses.append(loss(features))
            progress = train_generator(optimizer, settings["lr"], loss, progress, noise, labels)
            states.append(join_running(*progress[:2]))
        for name, (layer, leaf) in GENERATOR.items():
            if f"{prefix}__{name}" in case:
                ours = np.stack([np.asarray(state[layer][leaf]).T for state in states])
                yield case.compare(f"{prefix}__{name}", ours)
        if prefix == "gen":
            yield case.compare("losses", losses)
    yield case.compare("qualified", np.flatnonzero(counts.max(axis=0) > 1))
    case.excuse("*num_batches_tracked", "a counter without effect")
    case.excuse_unread("user*", "the clients' bodies, which features do not pass")
    case.excuse_unread("student__*", "the body, which features do not pass")


@covers("fedgen", "user_*")
def training_with_generator(case: Case):
    settings, params = case.meta, read_params(case, "in__")
    known = np.ones(len(case["label_counts"])) * (settings["glob_iter"] > 0)
    base = {"generator": {"network": read_generator(case, "gen__"), "labels": jnp.asarray(known)}}
    view = client_view(round=settings["glob_iter"])
    view = view._replace(received=view.received._replace(base=base))
    inputs, labels = (case[name].reshape(-1, *case[name].shape[2:]) for name in ("X", "Y"))
    settings.confirm(batch_size=labels.shape[1])
    is_drawn = "y_sampled" in case
    for step in range(len(labels)):
        draws = [jnp.asarray(case[name][step]) for name in ("eps_real_labels", "eps_sampled")] if is_drawn else []

        def draw_noise(key, shape, draws=draws):
            return next((draw for draw in draws if len(draw) == shape[0]), jnp.zeros(shape))

        def draw_labels(key, known, number, step=step):
            return jnp.asarray(case["y_sampled"][step]) if is_drawn else jnp.zeros(number, int)

        term = generated_features(
            settings["alpha"],
            settings["beta"],
            batch_size=settings["gen_batch_size"],
            draw_noise=draw_noise,
            draw_labels=draw_labels,
        )
        problem = Problem(make_network(params), (cross_entropy(), term), lambda inputs: inputs)
        batch = Batch(jnp.asarray(inputs[step]), jnp.asarray(labels[step]), jnp.ones(labels.shape[1]))
        _, gradient = problem.value_and_grad(params, {}, batch, view, KEY)
        params = jax.tree.map(lambda w, g: w - settings["lr"] * g, params, gradient)
    yield from compare_params(case, "out__", params)
    case.excuse("*num_batches_tracked", "a counter without effect")
    case.excuse_unread("label_counts", "what the server's weights are made of")


# ---- FedTGP ----------------------------------------------------------------------------------------------------------
def _published(means: np.ndarray) -> dict:
    return {"means": jnp.asarray(np.nan_to_num(means)), "is_known": jnp.asarray(~np.isnan(means).any(axis=-1))}


@covers("fedtgp", "client_*")
def client_step(case: Case):
    weights = {name: case[name] for name in ("W1", "b1", "W2", "b2")}
    algorithm = fedtgp(case.meta["lam"])
    problem = Problem(tanh_network(weights), algorithm.objective, lambda inputs: inputs)
    view = client_view(published={"prototypes": _published(case["global_protos"])})
    batch = Batch(jnp.asarray(case["x"]), jnp.asarray(case["y"]), jnp.ones(len(case["y"])))
    (loss, _), gradient = problem.value_and_grad(nested(weights)["params"], {}, batch, view, KEY)
    yield case.compare("loss", loss)
    for name in weights:
        yield case.compare(f"grad_{name}", gradient["classifier" if name in ("W2", "b2") else "body"][name])


@covers("fedtgp", "server_*")
def prototype_training(case: Case):
    settings, names = case.meta, ("embedings.weight", "middle.0.0.weight", "middle.0.0.bias", "fc.weight", "fc.bias")
    embedding, *layers = (jnp.asarray(case[f"in__{name}"]) for name in names)
    middle, output = ({"kernel": layers[i].T, "bias": layers[i + 1]} for i in (0, 2))
    network = {"embedding": embedding, "middle": middle, "output": output}
    protos, epochs, threshold = case["protos"], settings["epochs"], settings["margin_threshold"]
    summary = trained_prototypes(settings["lr"], epochs, threshold, protos[0].size)
    shared = {"outline": {"prototypes": jnp.zeros((0, *protos.shape[2:]))}}
    kept = summary.init(None, shared, *protos.shape[:2]) | {"network": network, "is_drawn": jnp.ones((), bool)}
    for number, means in enumerate(protos):
        now = lambda stored, number=number: stored[number]  # noqa: E731
        is_there = ~np.isnan(means).any(axis=-1)
        reports = {"means": jnp.asarray(np.nan_to_num(means)), "counts": jnp.asarray(is_there, float)}
        gap = np.asarray(min_gap(reports["means"], jnp.asarray(is_there)))
        yield case.compare("gap", np.where(np.isfinite(gap), gap, gap.min()), part=now)
        labels, mask = (x.reshape(-1) for x in (np.broadcast_to(np.arange(means.shape[1]), is_there.shape), is_there))
        points = reports["means"].reshape(-1, means.shape[-1])
        margin = min(float(gap[np.isfinite(gap)].max()), threshold)
        first = prototype_loss(kept["network"], points, jnp.asarray(labels), jnp.asarray(mask, float), margin)
        yield case.compare("losses", first, part=lambda stored, number=number: stored[number, 0])
        view = server_view(len(means))._replace(key=KEY)
        kept = summary.update(kept, StackedUpdates(reports), view)
        sent = summary.send(kept)
        yield case.compare("global_protos", sent["means"], part=now)
        network = kept["network"]
        ours = [network["embedding"]]
        ours += [x for part in ("middle", "output") for x in (network[part]["kernel"].T, network[part]["bias"])]
        for name, leaf in zip(names, ours, strict=True):
            yield case.compare(f"out__{name}", leaf, part=now)
