"""Differential privacy: the Gaussian mechanism with given normals, adaptive bounds, and the accountant's tables."""

from collections.abc import Iterator
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import privacy, tree
from fedjax_het.algorithm import ReceiveView, Stage, StageView
from fedjax_het.engine.round import participation
from fedjax_het.errors import InputError
from fedjax_het.privacy import FixedSizeSampling, PoissonSampling
from fedjax_het.types import Broadcast, ServerView, Upload
from fedjax_het.uplink import _gaussian, gaussian_mechanism
from tests.golden.cases import Case, Comparison, covers

ACCOUNTANT, CALIBRATION = 1e-4, 1e-3  # as the README of the cases says


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
    key = jax.random.key(0)

    def send(update, client):
        return stage.send(update, StageView(received, state, (), client, num_clients, key, key))

    sent = jax.vmap(send)(variables(updates), jnp.arange(num_clients))
    total, sides = jax.tree.map(lambda x: jnp.sum(x, axis=0), (sent.update, sent.side))
    mean = tree.scale(1 / max(num_clients, 1), total)
    present = jnp.ones(num_clients, bool)
    uploads = Upload({}, {}, jnp.ones(num_clients), jnp.ones(num_clients))
    server = ServerView(received, uploads, jnp.arange(num_clients), present, num_clients, None)
    normals = jnp.zeros(width) if normals is None else jnp.asarray(normals)

    def draw(key, like):
        return variables(normals) if isinstance(like, dict) else jnp.asarray(count_normal)

    with mock.patch.object(_gaussian, "draw_normals", draw):
        update, state = stage.receive(mean, ReceiveView(server, sides, state, key, num_clients, expected))
    return np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(update)]), state


@covers("privacy", "flat_*")
def flat(case: Case) -> Iterator[Comparison]:
    """Weights of clients are applied between clipping and the mechanism, which they cannot exceed."""
    updates, clip, z, normals = (case[name] for name in ("updates", "clip", "noise_multiplier", "standard_normal"))
    sizes, expected = case["layer_sizes"].tolist(), float(case["expected_clients"])
    case.meta.confirm(clients=len(updates))
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
    one_by_one = [
        run_stage(gaussian_mechanism(float(clip), 0.0, per_layer=True), [u], 1.0, sizes=sizes)[0] for u in updates
    ]
    yield case.compare("per_layer_clipped", np.stack(one_by_one))
    weighted = run_stage(layers, weights[:, None] * np.stack(one_by_one), float(case["qW"]), normals, sizes=sizes)[0]
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
    case.meta.confirm(clients=case["updates"].shape[1], rounds=len(case["updates"]))
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
    """Norms are updates of one number. The fraction of a round follows from the bounds before and after it."""
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


@covers("privacy", "noise_split_table")
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
def rows(case: Case, *names: str) -> list[tuple]:
    return list(zip(*(case[name].tolist() for name in names), strict=True))


@covers("privacy", "accounting_poisson")
def accounting_poisson(case: Case) -> Iterator[Comparison]:
    case.excuse("rdp_order", "epsilon alone is told")
    settings = rows(case, "noise_multiplier", "q", "rounds", "delta")
    for name in ("pld", "rdp"):
        ours = [privacy.epsilon(z, PoissonSampling(q), int(rounds), delta, name) for z, q, rounds, delta in settings]
        yield case.compare(f"eps_{name}", ours, ACCOUNTANT)


@covers("privacy", "accounting_poisson_neighbours")
def accounting_neighbors(case: Case) -> Iterator[Comparison]:
    """Poisson sampling is accounted for adding or removing a client; zeroing one costs the same."""
    case.excuse("eps_pld_replace_one", "Poisson sampling is accounted for adding or removing a client")
    settings = rows(case, "noise_multiplier", "q", "rounds", "delta")
    ours = [privacy.epsilon(z, PoissonSampling(q), int(rounds), delta) for z, q, rounds, delta in settings]
    yield case.compare("eps_pld_replace_special", ours, ACCOUNTANT)


@covers("privacy", "accounting_discretisation")
def accounting_grid(case: Case) -> Iterator[Comparison]:
    """The package's grid has the second interval; the others bound what the choice matters."""
    (z, q, rounds, delta, _), *_ = rows(case, "noise_multiplier", "q", "rounds", "delta", "interval")
    ours = privacy.epsilon(z, PoissonSampling(q), int(rounds), delta)
    yield case.compare("eps_pld", np.full(3, ours), ACCOUNTANT)


@covers("privacy", "accounting_fixed_size")
def accounting_fixed_size(case: Case) -> Iterator[Comparison]:
    for name in ("eps_rdp_multiplier_as_given", "order_*"):
        case.excuse(name, "the mistake that is to be caught, and orders, which are not told")
    settings = rows(case, "noise_multiplier", "num_clients", "cohort", "rounds", "delta")
    ours = [
        privacy.epsilon(z, FixedSizeSampling(int(clients), int(cohort)), int(rounds), delta)
        for z, clients, cohort, rounds, delta in settings
    ]
    yield case.compare("eps_rdp_sensitivity_2C", ours, ACCOUNTANT)


@covers("privacy", "accounting_truncated_poisson")
def accounting_truncated(case: Case) -> Iterator[Comparison]:
    case.excuse("eps_replace_one", "Poisson sampling is accounted for adding or removing a client")
    names = ("noise_multiplier", "num_clients", "q", "slots", "rounds", "delta")
    ours, whole, overflow = [], [], []
    for z, clients, q, slots, rounds, delta in rows(case, *names):
        sampling = PoissonSampling(q, int(clients), int(slots))
        ours.append(privacy.epsilon(z, sampling, int(rounds), delta))
        whole.append(privacy.epsilon(z, PoissonSampling(q), int(rounds), delta))
        overflow.append(participation.overflow_probability(int(clients), q, int(slots)))
    yield case.compare("eps_add_or_remove_one", ours, ACCOUNTANT)
    yield case.compare("eps_poisson", whole, ACCOUNTANT)
    yield case.compare("probability_of_overflow_a_round", overflow)


@covers("privacy", "accounting_sigma")
def accounting_sigma(case: Case) -> Iterator[Comparison]:
    settings = rows(case, "eps", "q", "rounds", "delta")
    for name in ("pld", "rdp"):
        ours = [
            privacy.noise_multiplier(eps, PoissonSampling(q), int(rounds), delta, name)
            for eps, q, rounds, delta in settings
        ]
        yield case.compare(f"sigma_{name}", ours, CALIBRATION)


@covers("privacy", "accounting_sigma_fixed_size")
def accounting_sigma_fixed_size(case: Case) -> Iterator[Comparison]:
    ours = [
        privacy.noise_multiplier(eps, FixedSizeSampling(int(clients), int(cohort)), int(rounds), delta)
        for eps, clients, cohort, rounds, delta in rows(case, "eps", "num_clients", "cohort", "rounds", "delta")
    ]
    yield case.compare("noise_multiplier_sensitivity_2C", ours, CALIBRATION)
