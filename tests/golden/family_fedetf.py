"""FedETF: the authors' frame, loss and rounds."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedetf
from fedjax_het.client.objectives._label_skew import balanced_losses
from fedjax_het.models._simplex_frame import framed_logits, simplex_frame
from fedjax_het.types import Model
from tests.golden.cases import Case, covers
from tests.golden.networks import (
    compare_federation,
    initial_weights,
    network,
    replay_federation,
    training_settings,
)

HEAD, UNUSED = ("scale",), ("W2", "b2")


@covers("fedetf", "frame_*")
def frame(case: Case):
    ours = simplex_frame(case["uniform_input"])
    yield case.compare("frame", ours)
    yield case.compare("gram", ours.T @ ours)
    yield case.compare("official_frame", ours, 5e-6)  # made in float32
    yield case.compare("official_rows", ours.T[case["labels"]], 5e-6)


@covers("fedetf", "loss_*")
def losses(case: Case):
    frame, labels, counts = (jnp.asarray(case[name]) for name in ("frame", "labels", "counts"))
    projection, scale = jnp.asarray(case["projection"]), jnp.asarray(case["scale"])
    yield case.compare("official_logits", framed_logits(projection, frame, scale))
    has_direction = np.any(case["projection"] != 0, axis=1)
    for name, gamma, gradient in (
        ("official", 1.0, "official_grad_projection"),
        ("gamma00", 0.0, "gamma00_grad"),
        ("gamma05", 0.5, "gamma05_grad"),
    ):

        def loss(projection, scale, gamma=gamma):
            return jnp.mean(balanced_losses(framed_logits(projection, frame, scale), labels, counts, gamma))

        value, (by_projection, by_scale) = jax.jit(jax.value_and_grad(loss, (0, 1)))(projection, scale)
        yield case.compare(f"{name}_loss", value)
        yield case.compare(f"{name}_grad_scale", by_scale)
        if has_direction.all():
            yield case.compare(gradient, by_projection)
        else:
            expected = np.where(has_direction[:, None], case[gradient], 0)
            held_to = "the stored one, and 0 where there is no direction"
            yield case.contain(gradient, by_projection, expected, "the clamp of a length of 0", held_to)


@covers("fedetf", "rounds_*")
def rounds(case: Case):
    settings, weights = case.meta, initial_weights(case)
    settings.confirm(scale_init=float(weights["scale"]))
    algorithm = replace(fedetf(preset="released", **training_settings(case)), adapt=lambda model: model)
    replay = replay_federation(case, algorithm, _network(weights, jnp.asarray(case["frame"])))
    yield from compare_federation(case, replay, HEAD, UNUSED)
    for pattern in ("*W2", "*b2"):
        case.excuse(pattern, "a linear head that takes no part, and that ours leaves out")
    case.excuse("losses", "means over batches of unequal sizes; ours are over examples")


def _network(weights: dict, frame) -> Model:
    """tanh(x W1^T + b1) P^T + q, classified by the stored frame."""
    body = {name: jnp.asarray(weights[name]) for name in weights.keys() - {*UNUSED, *HEAD}}
    variables = {"params": {"body": body, "classifier": {"scale": jnp.asarray(weights["scale"])}}}

    def encode(params, inputs):
        layer = params["body"]
        return jnp.tanh(inputs @ layer["W1"].T + layer["b1"]) @ layer["P"].T + layer["q"]

    def classify(params, features):
        return framed_logits(features, frame, params["classifier"]["scale"])

    return network(variables, encode, classify)
