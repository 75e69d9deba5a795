"""Differential privacy: the Gaussian mechanism with given normals, adaptive bounds, and the accountant's tables."""

from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import noise, privacy, tree
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import ReceiveView, Stage, StageView
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.privacy import FixedSizeSampling, PoissonSampling
from fedjax_het.types import Broadcast
from fedjax_het.uplink import _gaussian, gaussian_mechanism
from tests.golden.cases import Case, Comparison, covers
from tests.views import server_view

ACCOUNTANT, CALIBRATION = 1e-4, 1e-3  # as in the README of the cases


def run_stage(
    stage: Stage, updates, expected: float, normals=None, count_normal: float = 0.0, state=(), sizes=None
) -> tuple[np.ndarray, object]:
    """Send vectors [m, d], in tensors of these sizes, through a stage; return (the server's update, its new state)."""
    updates = jnp.asarray(updates)
    num_clients, width = updates.shape
    ends = np.cumsum([width] if sizes is None else sizes)[:-1]

    def variables(vectors) -> dict:
        return {"params": {str(i): part for i, part in enumerate(jnp.split(vectors, ends, axis=-1))}}

    received = Broadcast(jnp.asarray(0), variables(jnp.zeros(width)), {}, (state,))
    key = make_key(0)

    def send(update, client):
        return stage.send(update, StageView(received, state, (), client, num_clients, key, key))

    sent = jax.vmap(send)(variables(updates), jnp.arange(num_clients))
    total, statistics = jax.tree.map(lambda x: jnp.sum(x, axis=0), (sent.update, sent.statistics))
    mean = tree.scale(1 / max(num_clients, 1), total)
    server = server_view(num_clients)._replace(received=received)
    normals = jnp.zeros(width) if normals is None else jnp.asarray(normals)

    def draw(key, like):
        return variables(normals) if isinstance(like, dict) else jnp.asarray(count_normal)

    with mock.patch.object(noise, "draw_normals", draw):
        update, state = stage.receive(mean, ReceiveView(server, statistics, state, key, num_clients, expected))
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(update)]), state


@covers("privacy", "flat_*")
def flat(case: Case) -> Iterator[Comparison]:
    """Weights of clients are applied between clipping and the mechanism, which they cannot exceed."""
    updates, clip, z, normals = (case[name] for name in ("updates", "clip", "noise_multiplier", "standard_normal"))
    sizes, expected = case["layer_sizes"].tolist(), float(case["expected_clients"])
    stage = gaussian_mechanism(float(clip), float(z))
    yield case.compare("out", run_stage(stage, updates, expected, normals, sizes=sizes)[0])
    clipped, norms = clip_each(updates, float(clip))
    yield case.compare("norms", norms)
    yield case.compare("was_clipped", np.any(clipped != updates, axis=1))
    if "weights" not in case:
        return
    case.excuse("clipped_denominator", "the sum is divided by the expected number alone, whoever came")
    case.excuse("qW_min", "of the clipped denominator")
    weights = np.minimum(case["n_samples"] / case["w_hat"], 1)
    yield case.compare("weights", weights)
    weighted = run_stage(stage, weights[:, None] * clipped, float(case["qW"]), normals, sizes=sizes)[0]
    yield case.compare("fixed_denominator", weighted)
    layers = gaussian_mechanism(float(clip), float(z), per_layer=True)
    single = [
        run_stage(gaussian_mechanism(float(clip), 0.0, per_layer=True), [u], 1.0, sizes=sizes)[0] for u in updates
    ]
    yield case.compare("per_layer_clipped", np.stack(single))
    weighted = run_stage(layers, weights[:, None] * np.stack(single), float(case["qW"]), normals, sizes=sizes)[0]
    yield case.compare("per_layer_fixed", weighted)


def clip_each(updates: np.ndarray, clip: float) -> tuple[np.ndarray, np.ndarray]:
    """(The clipped updates, the norms of the updates)."""
    stage = gaussian_mechanism(clip, 0.0)
    clipped = [run_stage(stage, [update], 1.0)[0] for update in updates]
    norms = [float(tree.norm(jnp.asarray(update))) for update in updates]
    return np.reshape(clipped, updates.shape), np.asarray(norms)


@covers("privacy", "adaptive_*")
def adaptive(case: Case) -> Iterator[Comparison]:
    """With the fraction forced into [0, 1], as in TensorFlow Privacy, and without, as in pfl-research."""
    z, sigma = float(case["noise_multiplier"]), float(case["count_stddev"])
    yield case.compare("value_noise_multiplier", _gaussian.split_noise(z, sigma))
    for prefix, is_bounded, tolerance in (("", True, None), ("pfl_", False, 1e-6)):
        if f"{prefix}out" not in case:
            continue
        stage = gaussian_mechanism(
            float(case["initial_clip"]),
            z,
            target_quantile=float(case["target"]),
            quantile_rate=float(case["learning_rate"]),
            count_noise=sigma,
            bounded_fraction=is_bounded,
        )
        state, outs, bounds = stage.init_server({"params": {}}, 0, 0), [], []
        expected, sizes = float(case["expected_clients"]), case["layer_sizes"].tolist()
        for updates, normals, count in zip(
            case["updates"], case["standard_normal"], case["standard_normal_count"], strict=True
        ):
            out, state = run_stage(stage, updates, expected, normals, float(count), state, sizes)
            outs.append(out)
            bounds.append(float(state))
        yield case.compare(f"{prefix}out", np.stack(outs), tolerance)
        yield case.compare(f"{prefix}clip_after", bounds, tolerance)


@covers("privacy", "quantile_*")
def quantile(case: Case) -> Iterator[Comparison]:
    """Norms are updates of one number. The bounds before and after a round determine its fraction."""
    values, normals, rate = case["values"], case["standard_normal"], float(case["learning_rate"])
    target, expected = float(case["target"]), float(case["expected"])

    def adapt(bound: float, number: int, is_bounded: bool) -> float:
        stage = gaussian_mechanism(
            float(case["initial"]),
            0.0,
            target_quantile=target,
            quantile_rate=rate,
            count_noise=float(case["stddev"]),
            bounded_fraction=is_bounded,
        )
        vectors = values[number][:, None]
        return float(run_stage(stage, vectors, expected, None, float(normals[number]), jnp.asarray(bound))[1])

    paths = {"estimate": True, "estimate_unclipped_fraction": False}
    for name, is_bounded in paths.items():
        if not case["geometric"]:
            case.excuse(name, "a bound moves by factors, never by steps")
            continue
        path = [float(case["initial"])]
        for number in range(len(values)):
            path.append(adapt(path[-1], number, is_bounded))
        yield case.compare(name, path[1:])
    before = [float(case["initial"]), *case["estimate"][:-1].tolist()]
    after = np.array([adapt(bound, number, False) for number, bound in enumerate(before)])
    yield case.compare("noisy_fraction", target - np.log(after / before) / rate)


@covers("privacy", "noise_split_*")
def noise_split(case: Case) -> Iterator[Comparison]:
    names = ("noise_multiplier", "clients_per_round", "stddev_given")
    splits, deviations, allowed = [], [], []
    for z, expected, given in zip(*(case[name].tolist() for name in names), strict=True):
        sigma = _gaussian.count_deviation(z, None if np.isnan(given) else given, expected)
        deviations.append(sigma)
        try:
            splits.append(_gaussian.split_noise(z, sigma))
        except InputError:
            splits.append(np.nan)
        allowed.append(np.isfinite(splits[-1]))
    is_allowed = case["is_allowed"] == 1
    yield case.compare("is_allowed", allowed)
    for name, ours in (("value_noise_multiplier", splits), ("count_stddev", deviations)):
        yield case.compare(name, np.array(ours)[is_allowed], 1e-12, part=lambda array: array[is_allowed])


# ---- accounting ------------------------------------------------------------------------------------------------------
EXCUSES = {
    "*order*": "orders are not told",
    "eps_rdp_multiplier_as_given": "the mistake that is to be caught",
    "eps*_replace_one": "Poisson sampling is accounted for adding or removing a client",
    "interval": "the package has a grid of its own; the others bound what the choice matters",
}
# {array: the accountant} of tables of epsilon, and of the least noise; zeroing a client costs what removing one does.
EPSILONS = {
    "eps_pld": "pld",
    "eps_rdp": "rdp",
    "eps_pld_replace_special": "auto",
    "eps_rdp_sensitivity_2C": "auto",
    "eps_add_or_remove_one": "auto",
}
MULTIPLIERS = {"sigma_pld": "pld", "sigma_rdp": "rdp", "noise_multiplier_sensitivity_2C": "auto"}


@covers("privacy", "accounting_*")
def accounting(case: Case) -> Iterator[Comparison]:
    """Tables with one setting per row; their columns describe the sampling of clients."""
    for pattern, reason in EXCUSES.items():
        case.excuse(pattern, reason)
    samplings = _samplings(case)
    rest = list(zip(case["rounds"].astype(int).tolist(), case["delta"].tolist(), strict=True))
    for names, function, given, tolerance in (
        (EPSILONS, privacy.epsilon, "noise_multiplier", ACCOUNTANT),
        (MULTIPLIERS, privacy.noise_multiplier, "eps", CALIBRATION),
    ):
        for name in filter(case.__contains__, names):
            settings = zip(case[given].tolist(), samplings, rest, strict=True)
            yield case.compare(name, [function(x, how, *args, names[name]) for x, how, args in settings], tolerance)
    if "slots" in case:
        settings = zip(case["noise_multiplier"].tolist(), case["q"].tolist(), rest, strict=True)
        whole = [privacy.epsilon(z, PoissonSampling(q), *arguments) for z, q, arguments in settings]
        yield case.compare("eps_poisson", whole, ACCOUNTANT)
        overflow = [participation.overflow_probability(s.num_clients, s.probability, s.slots) for s in samplings]
        yield case.compare("probability_of_overflow_a_round", overflow)


def _samplings(case: Case) -> list:
    """The sampling of clients in every row."""
    columns = ("num_clients", "cohort") if "cohort" in case else ("q", "num_clients", "slots")
    kind = FixedSizeSampling if "cohort" in case else PoissonSampling
    values = [case[name].tolist() for name in columns if name in case]
    return [
        kind(*(x if name == "q" else int(x) for name, x in zip(columns, row, strict=False)))
        for row in zip(*values, strict=True)
    ]
