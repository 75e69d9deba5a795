"""FedDG: the authors' images, boundary masks, contrast, Dice, episodic steps and weights."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het._internal.keys import make_key
from fedjax_het.client.episodes import episodic_gradient
from fedjax_het.client.objectives._boundary import boundary_masks, contrast_of_masks, mean_over
from fedjax_het.client.objectives._contrastive import supervised_contrast
from fedjax_het.client.objectives._supervised import dice_loss
from fedjax_het.problem import ForwardPass, Problem
from fedjax_het.server.weightings import by_examples
from fedjax_het.spectra import interpolate_amplitudes, low_frequencies, spectrum
from fedjax_het.types import Batch, Model
from tests.golden.cases import Case, covers
from tests.golden.family_harmofl import nchw, nhwc
from tests.golden.networks import Network
from tests.golden.replay import torch_optimizer
from tests.views import client_view, server_view

STRUCTURES = ("disc", "cup")


def _interpolate(image: np.ndarray, amplitude: np.ndarray, rates, band: float):
    """One image [height, width, channel] at all rates, towards a whole amplitude spectrum."""
    images, low = np.repeat(image[None], len(rates), axis=0), np.ix_(*low_frequencies(image.shape[:2], band))
    return jax.jit(interpolate_amplitudes, static_argnums=3)(images, amplitude[low], jnp.asarray(rates), band)


@covers("feddg", "amp_*")
def interpolation(case: Case):
    x, band = nhwc(case["x"]), case.meta["L"]
    ours = _interpolate(x, nhwc(case["target_amplitude"]), case["rates"], band)
    yield case.compare("y", nchw(ours))
    yield case.compare("amplitude", nchw(jax.jit(spectrum)(ours)[0]))
    if np.any(x):
        yield case.refute("y_formula_as_printed", nchw(ours), 0.1)
    else:  # a black image has nothing that the misprint could darken
        yield case.compare("y_formula_as_printed", nchw(ours))


@covers("feddg", "loader_*")
def released_images(case: Case):
    ours = _interpolate(case["x"], nhwc(case["target_amplitude"]), [case.meta["rate"]], case.meta["L"])[0]
    yield case.compare("y", ours)
    yield case.compare("clipped", jnp.clip(ours, 0, 255))


@covers("feddg", "contour_*")
def masks(case: Case):
    for number, structure in enumerate(STRUCTURES):
        contour, background = boundary_masks(jnp.asarray(case["masks"][:, number]) > 0)
        yield case.compare(f"{structure}_contour", contour[:, None])
        yield case.compare(f"{structure}_background", background[:, None])


@covers("feddg", "contrast_*")
def contrast(case: Case):
    temperature = case.meta["temperature"]
    regions = [jnp.asarray(case[f"{name}_{kind}"][:, 0]) for name in STRUCTURES for kind in ("contour", "background")]
    features = [jnp.asarray(nhwc(case[f"embedding_{name}"])) for name in ("inner", "outer")]
    for name, maps in zip(("inner", "outer"), features, strict=True):
        yield case.compare(f"pooled_{name}", np.stack([mean_over(maps, region) for region in regions]))

    def losses(inner, outer):
        return [_contrast(inner, outer, temperature, *pair) for pair in (regions[:2], regions[2:])]

    separate = jax.jit(losses)(*features)
    for name, loss in zip(STRUCTURES, separate, strict=True):
        yield case.compare(f"{name}_loss", loss)
        vectors, labels = jnp.asarray(case[f"{name}_vectors"]), jnp.asarray(case["labels"])
        vector_gradient = jax.grad(lambda v, y=labels: supervised_contrast(v, y, jnp.ones(len(y), bool), temperature))
        yield case.compare(f"grad_{name}_vectors", jax.jit(vector_gradient)(vectors))
    yield case.compare("loss", sum(separate))
    gradients = jax.jit(jax.grad(lambda inner, outer: sum(losses(inner, outer)), argnums=(0, 1)))(*features)
    for name, gradient in zip(("inner", "outer"), gradients, strict=True):
        yield case.compare(f"grad_{name}", nchw(gradient))


def _contrast(first, second, temperature: float, contour, background) -> jax.Array:
    """For one structure, which all examples have."""
    return contrast_of_masks(first, second, contour > 0, background > 0, jnp.ones(len(first), bool), temperature)


@covers("feddg", "dice_*")
def overlap(case: Case):
    loss, gradient = jax.jit(jax.value_and_grad(dice_loss))(nhwc(case["score"]), nhwc(case["target"]))
    yield case.compare("loss", loss)
    yield case.compare("grad", nchw(gradient))


def _score_dice(forward: ForwardPass) -> jax.Array:
    return dice_loss(jax.nn.sigmoid(forward.outputs.logits), forward.batch.labels)


def _pixel_network(pixels: Network) -> Model:
    """Its state is the weights of the last pass."""

    def encode(variables, inputs, context):
        return (pixels.encode(variables["params"], inputs), {}), {"weights": variables["params"]}

    return Model(lambda key, inputs: {}, encode, pixels.classify, lambda _: {})


@covers("feddg", "step_*")
def steps(case: Case):
    settings, (raw, transformed, labels) = case.meta, (nhwc(case[n]) for n in ("raw", "transformed", "label"))
    inside, outside = raw.shape[-1], labels.shape[-1]
    pixels = Network(case["w0"], inside, (case["w0"].size - outside) // (inside + 1 + outside), outside)
    problem = Problem(_pixel_network(pixels), (_score_dice,), lambda inputs: inputs)
    optimizer = torch_optimizer(settings["optimizer"], settings["learning_rate"])
    options = {"inner_step": settings["inner_step"], "inner_clip": settings["clip"]}
    view = client_view()
    everyone, key = jnp.ones(raw.shape[1]), make_key(0)
    params = pixels.leaves(pixels.start)
    state, found = optimizer.init(params), []

    @jax.jit
    def step(params, state, images, altered, label, masks):
        def contrast(first: ForwardPass, second: ForwardPass) -> jax.Array:
            features = first.outputs.features, second.outputs.features, settings["temperature"]
            return sum(_contrast(*features, *pair) for pair in (masks[:2], masks[2:]))

        def weighted(first: ForwardPass, second: ForwardPass) -> jax.Array:
            return settings["gamma"] * contrast(first, second)

        batch, other = (Batch(inputs, label, everyone) for inputs in (images, altered))
        gradients = []
        for order in ("second", "first"):
            rule = episodic_gradient(lambda *_: other.inputs, weighted, order=order, **options)
            (loss, after), gradient = rule(problem, params, {}, batch, view, key)
            gradients.append(pixels.vector(gradient))
        passes = [problem.forward(*model, view, key) for model in ((params, {}, batch), (after["weights"], {}, other))]
        losses = [*map(_score_dice, passes), contrast(*passes), loss]
        updates, state = optimizer.update(gradient, state, params)
        params = optax.apply_updates(params, updates)
        return params, state, (pixels.vector(after["weights"]), *gradients, jnp.stack(losses), pixels.vector(params))

    for stored in zip(raw, transformed, labels, case["masks"][:, :, :, 0], strict=True):
        params, state, values = step(params, state, *stored)
        found.append(values)
    names = ("fast", "grad_second_order", "grad", "losses", "w")
    for name, values in zip(names, zip(*found, strict=True), strict=True):
        yield case.compare(name, np.stack(values))
    if (difference := settings["second_order_differs"]) > 0:
        yield case.refute("grad_second_order", np.stack([gradients[2] for gradients in found]), difference / 10)


@covers("feddg", "weights_*")
def weights(case: Case):
    counts = jnp.asarray(case["n_samples"], float)
    ours = []
    for unseen in range(len(counts)):  # this client does not take part
        view = server_view(len(counts), num_examples=counts)
        ours.append(by_examples.update((), view._replace(is_present=jnp.arange(len(counts)) != unseen))[0])
    yield case.compare("exact", np.stack(ours))
    yield case.refute("weights", np.stack(ours), 1e-3)
