"""FedLD: margin loss, principal directions, decomposition of the loss; and PGrad, where the axes come from."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.algorithms import fedld
from fedjax_het.client.objectives import cross_entropy, margin
from fedjax_het.diagnostics import decomposition
from fedjax_het.server.aggregators import principal_directions
from fedjax_het.server.aggregators._principal import NORMS, principal_axes, principal_edit
from tests.golden.cases import Case, covers
from tests.golden.released_rules import principal_mean
from tests.golden.replay import aggregate, combine, combine_all
from tests.views import forward_pass

RELEASED = fedld.presets["released"]
BY_TENSOR = {"weighting": RELEASED["weighting"], **RELEASED["aggregation"]}
FLAT = BY_TENSOR | {"scope": "model"}
OPTIONS = {
    "agg_default": {},
    "agg_closed_form": {},
    "agg_uniform": {"weighting": "uniform"},
    "agg_whole_orthogonal": {"correction": "whole"},
    "agg_whole_cosine": {"correction": "whole", "projection": "cosine"},
    "agg_eig_l2_all": {"eig_norm": "l2_all"},
    "agg_eig_sum_selected": {"eig_norm": "sum_selected"},
    "agg_eig_sum_all": {"eig_norm": "sum_all"},
    "agg_eig_unit": {"eig_norm": "unit"},
    "agg_no_correction": {"correction": "none"},
    "agg_cosine_per_axis": {},  # per axis the projection has no effect and raises an error
    "agg_sign_majority": {},  # the sign of an axis has no effect and is not an option here
    "agg_sign_none": {},
}


@covers("fedld", "loss_*")
def margin_loss(case: Case):
    labels, lam = case["labels"], float(case["lam"])

    def total(logits, form: str):
        forward = forward_pass(logits, labels)
        return cross_entropy()(forward) + margin(lam, form)(forward)

    logits = jnp.asarray(case["logits"])
    entropy = float(case["ce"])
    for form in ("logits_mean", "logits_batch", "softmax_batch", "softmax_mean"):
        loss, gradient = jax.jit(jax.value_and_grad(total), static_argnums=1)(logits, form)
        names = [form, "official"] if form == "softmax_batch" else [form]
        for name in names:
            yield case.compare(f"{name}_loss", loss)
            yield case.compare(f"{name}_grad", gradient)
        if lam:
            yield case.compare(f"{form}_reg", (loss - entropy) / lam, 1e-8)
        else:
            case.excuse(f"{form}_reg", "lam is 0 here")


@covers("fedld", "paper_*")
def principal(case: Case):
    stack, counts, fraction = case["G"], case["n_samples"], float(case["ratio"])
    scale = float(np.linalg.norm(stack, axis=1).max())
    rules = {name: principal_directions(fraction, **options) for name, options in OPTIONS.items() if name in case}
    for name, ours in combine_all(rules, stack, counts).items():
        yield case.compare(name, ours, scale=scale * 1e-3)
    is_present = jnp.ones(len(stack), bool)
    gram = jnp.asarray(stack @ stack.T)
    axes = principal_axes(gram, is_present, fraction)
    num_kept, scale = int(axes.is_kept.sum()), float(axes.eigenvalues[0])
    yield case.compare("L", axes.is_selected.sum())
    yield case.compare("eigenvalues", axes.eigenvalues, scale=scale)
    yield case.compare("rank", (axes.eigenvalues > 1e-12 * scale).sum())
    weights = (axes.eigenvalues / NORMS["l2_selected"](axes))[:num_kept]
    yield case.compare("axis_weights", weights)
    if "revised" in case:
        yield case.compare("revised", principal_edit(fraction)(gram, is_present) @ stack)
    if "axes" in case:
        ours = (axes.vectors / jnp.where(axes.is_kept, axes.lengths, 1)).T[:num_kept] @ stack
        yield case.compare("axes", ours * np.sign(np.sum(ours * case["axes"], axis=1, keepdims=True)), 1e-7)
    case.excuse("proj_sign", "of axes whose own sign is arbitrary")


@covers("fedld", "official_flat_*")
def released_flat(case: Case):
    stack, fraction = case["G"], float(case["k_proportion"])
    if str(case["error"]):
        raise ValueError(f"the released code failed, so that there is nothing to hold ours against: {case['error']}")
    gram, rounding = jnp.asarray(stack @ stack.T), FLAT["rounding"]
    axes = principal_axes(gram, jnp.ones(len(stack), bool), fraction, rounding)
    yield case.compare("L_used", axes.is_selected.sum())
    aggregator = principal_directions(fraction, **FLAT)
    # In the released code, a history of zeros means that its first round, a plain mean, is not over.
    ours = combine(aggregator, stack, case["n_samples"], round=int(np.any(case["history_in"])))
    scale = float(np.linalg.norm(stack, axis=1).max()) * 1e-3
    if case.is_finite("agg"):
        yield case.compare("agg", ours, scale=scale)
    else:
        fault, held_to = "0/0 for a client that sent zeros", "a transcription in which that client stays zero"
        yield case.contain("agg", ours, principal_mean(stack, fraction), fault, held_to, scale=scale)
    case.excuse("history_out", "the released code reads nothing of it but whether it is zero")


@covers("fedld", "official_layerwise_*")
def released_by_tensor(case: Case):
    bounds = np.cumsum([0, *case["layer_lens"]])
    aggregator = principal_directions(float(case["k_proportion"]), **BY_TENSOR)
    rounds = []
    for number, stack in enumerate(case["G"]):
        layers = {str(name): stack[:, a:b] for name, a, b in zip(case["layer_names"], bounds, bounds[1:], strict=False)}
        update = aggregate(aggregator, {"params": layers}, round=number)[0]["params"]
        rounds.append(np.concatenate([update[str(name)] for name in case["layer_names"]]))
    yield case.compare("agg", np.stack(rounds))
    case.excuse("history", "the released code reads nothing of it but whether it is zero")


@covers("fedld", "decomposition_*")
def loss_decomposition(case: Case):
    parts = decomposition(*(jnp.asarray(case[n]) for n in ("L_data_j_model_i", "L_global_on_j", "n_samples")))
    scale = float(parts.total)
    ours = {"local": parts.local, "shift": parts.shift, "agg": parts.aggregation, "total": parts.total}
    ours |= {"shift_abs": abs(parts.shift), "agg_abs": abs(parts.aggregation)}
    for name, value in ours.items():
        yield case.compare(name, value, scale=scale)
    case.excuse("agg_as_printed", "the misprint, wrong by exactly the shift")


@covers("pgrad", "pca_*")
def axes(case: Case):
    """PGrad takes the covariance over coordinates of the centred stack: our axes of it, eigenvalues by d - 1."""
    stack = case["stack"]
    centred = stack - stack.mean(axis=0)
    num_rows, size = stack.shape
    ours = principal_axes(jnp.asarray(centred @ centred.T), jnp.ones(num_rows, bool), 1.0)
    values = ours.eigenvalues * num_rows / (size - 1)
    yield case.compare("values", values)
    yield case.compare("coef_top4", (values / jnp.linalg.norm(values[:4]))[:4])
    real = num_rows - 1  # centring removes one axis; the last column is noise
    directions, theirs = ((ours.vectors / ours.lengths).T[:real] @ centred).T, case["directions"]
    aligned = directions * np.sign(np.sum(directions * theirs[:, :real], axis=0))
    yield case.compare("directions", np.hstack([aligned, theirs[:, real:]]), 1e-8)
