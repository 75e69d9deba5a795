"""Selection by what clients report: Power-of-Choice, active federated learning, Oort, DivFL, FedCor."""

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.engine.round.participation import Told, know_nothing, pow_d, remember
from fedjax_het.engine.round.participation._divfl import distances_between, select_greedily
from fedjax_het.engine.round.participation._loss_covariance import NOISE, condition, covariance_of, select_correlated
from fedjax_het.engine.round.participation._oort import Pace, Settings, keep_pace, plan, root_of_squares
from fedjax_het.engine.round.participation._selection import count_by_value, draw_in_order, is_dropped, largest_first
from tests.golden.cases import Case, covers


@covers("powerofchoice", "official_*")
def largest_losses(case: Case):
    meta, candidates, losses = case.meta, case["candidates"], case["losses"]
    yield case.compare("probabilities", case["n_samples"] / case["n_samples"].sum())
    rule, everyone = pow_d(meta["m"], meta["d"]), jnp.ones(meta["d"], bool)
    assert meta["rule"] in ("pow-d", "rpow-d")
    rows, chosen = [], []
    for ids, values in zip(candidates, losses, strict=True):
        own = jnp.asarray(values[ids])
        rows.append(ids[np.asarray(largest_first(own, everyone))[: meta["m"]]])
        told = Told(jnp.asarray(1), jnp.asarray(ids), everyone, own)
        chosen.append(np.sort(ids[np.asarray(rule.poll.choose(know_nothing(case["n_samples"]), told)[0])]))
    yield case.compare("selected", np.stack(rows))
    yield case.compare("selected", np.stack(chosen), part=lambda array: np.sort(array, axis=1))
    for name in case.matching("x_wrong_*"):
        if np.array_equal(np.sort(case[name], axis=1), np.stack(chosen)):
            case.excuse(name, "the same clients in this case")
        else:
            yield case.refute(name, np.stack(chosen), part=lambda array: np.sort(array, axis=1))


@covers("powerofchoice", "inclusion_*")
def inclusions(case: Case):
    counts, num_draws, size = case["n_samples"], 40_000, case.meta["d"]
    yield case.compare("probabilities", counts / counts.sum())
    keys = jax.random.split(make_key(0), num_draws)
    drawn = jax.jit(jax.vmap(lambda key: draw_in_order(key, jnp.log(jnp.asarray(counts, float)))[:size]))(keys)
    shares = np.bincount(np.ravel(drawn), minlength=len(counts)) / num_draws
    yield case.compare("inclusion", shares, tolerance=4 * 0.5 / num_draws**0.5)


@covers("activefl", "*")
def active_values(case: Case):
    meta, counts = case.meta, case["n_samples"]
    everyone = jnp.ones(len(counts), bool)
    values = np.sqrt(counts) * case["losses"]
    yield case.compare("values", values)
    dropped = np.stack([is_dropped(jnp.asarray(row), everyone, meta["alpha1"]) for row in case["values"]])
    yield case.compare("dropped", dropped)
    logits = np.where(dropped, -np.inf, meta["alpha2"] * values)
    yield case.compare("probabilities", jax.nn.softmax(jnp.asarray(logits), axis=1))
    first = count_by_value(meta["m"], meta["alpha3"])
    yield case.compare("num_by_value", np.full(len(values), first))
    yield case.compare("num_uniform", np.full(len(values), meta["m"] - first))


@covers("oort", "official_*")
def plans(case: Case):
    meta, utilities = case.meta, case["utilities"]
    meta.confirm(first_time=2, blacklist_max_len=1 if meta["blacklist_rounds"] > 0 else 0.3)
    meta["duplicates_by_round"]
    settings = Settings(
        cohort_size=meta["m"],
        exploration=meta["exploration"],
        decay=meta["exploration_decay"],
        smallest=meta["exploration_min"],
        penalty=meta["round_penalty"],
        pacer_step=meta["pacer_step"],
        pacer_delta=meta["pacer_delta"],
        clip=meta["clip_bound"],
        clip_over="all",
        cut_off=meta["cut_off"],
        window=meta["sample_window"],
        max_rounds=None if meta["blacklist_rounds"] < 0 else meta["blacklist_rounds"],
        # The code takes the first `blacklist_max_len * N` of those left out, and N with the cap of 1.
        blacklist=meta["blacklist_max_len"],
    )
    known = know_nothing(case["initial_reward"])._replace(seconds=jnp.asarray(case["durations"]))
    assert np.array_equal(case["initial_reward"], np.minimum(case["n_samples"], 40))
    pace = Pace(known, jnp.asarray(meta["round_threshold"]), jnp.zeros(2 * meta["pacer_step"]))
    pace = report(settings, pace, 1, case["first_round"], utilities[0])
    rows, thresholds, tried = [], [], []
    for number, picked in enumerate(case["picked"]):
        rows.append(plan(settings, pace, jnp.asarray(number + 2)))
        thresholds.append(pace.threshold)
        tried.append(np.asarray(pace.known.count > 0))
        picked = picked[picked >= 0]
        exploited = picked[len(picked) - case["num_exploit"][number] :]
        pace = report(settings, pace, number + 2, exploited, utilities[number + 1])
        others = np.setdiff1d(picked, exploited)  # among them those that the code explores again, which move no pacer
        pace = pace._replace(known=remember(pace.known, tell(number + 2, others, utilities[number + 1])))
    stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *rows)
    yield case.compare("threshold", np.stack(thresholds))
    if np.isinf(case["prefer_duration"]).all():
        assert np.isinf(stacked.preferred).all()
        case.excuse("prefer_duration", "infinity without a penalty")
    else:
        yield case.compare("prefer_duration", stacked.preferred)
    yield case.compare("clip", stacked.clip)
    is_open = ~np.isnan(case["scores"])
    yield case.compare("scores", np.where(is_open, stacked.scores, np.nan))
    yield case.compare("exploit_candidates", stacked.exploit > 0)
    for name, weights in (("exploit_prob", stacked.exploit), ("explore_prob", stacked.explore)):
        totals = weights.sum(axis=1, keepdims=True)
        yield case.compare(name, weights / np.where(totals > 0, totals, 1))
    yield case.compare("num_explore", stacked.num_explore)
    filled = np.minimum(meta["m"] - case["num_explore"], is_open.sum(axis=1))
    if np.array_equal(filled, case["num_exploit"]):
        yield case.compare("num_exploit", stacked.num_exploit)
    else:
        fault = "the last list of explored clients is handed out again once all were tried"
        yield case.contain("num_exploit", stacked.num_exploit, filled, fault, "all places that are left")
    times = np.arange(2, len(rows) + 2)
    shares = np.maximum(meta["exploration"] * meta["exploration_decay"] ** (times - 1), meta["exploration_min"])
    yield case.compare("exploration", shares)
    yield case.compare("bonus", np.sqrt(0.1 * np.log(times)))


def report(settings: Settings, pace: Pace, number: int, ids: np.ndarray, utilities: np.ndarray) -> Pace:
    """The state after a round in which these clients have taken part."""
    return keep_pace(settings, pace, tell(number, ids, utilities))


def tell(number: int, ids: np.ndarray, utilities: np.ndarray) -> Told:
    return Told(jnp.asarray(number), jnp.asarray(ids), jnp.ones(len(ids), bool), jnp.asarray(utilities[ids]))


@covers("oort", "utility_*")
def utilities(case: Case):
    losses = case["losses"]
    ours = root_of_squares(len(losses), jnp.sum(jnp.asarray(losses) ** 2))
    yield case.compare("utility", ours)
    yield case.refute("x_wrong_loss_of_mean", ours)
    case.excuse("last_batch", "the code's utility, of the last batch alone")
    case.meta["batch_size"]


@covers("divfl", "*")
def representatives(case: Case):
    meta, everyone = case.meta, jnp.ones(len(case["gradients"]), bool)
    distances = distances_between({"w": jnp.asarray(case["gradients"])})
    yield case.compare("distances", distances, tolerance=1e-7)  # from a Gram matrix
    chosen = np.asarray(select_greedily(jnp.asarray(case["distances"]), everyone, jnp.full(meta["m"], -1), meta["m"]))
    represented = case["distances"][:, chosen]
    assert abs(represented.min(axis=1).sum() - meta["objective"]) < 1e-9
    meta.confirm(objective_greedy=meta["objective"])
    meta["objective_lazy"]
    yield case.compare("selected", chosen)
    yield case.compare("selected_sorted", np.sort(chosen))
    case.excuse("lazy_sorted", "the same choice by another order of evaluation")
    case.excuse("represented_by", "the weights of the mean are the algorithm's")
    case.excuse("cluster_sizes", "the weights of the mean are the algorithm's")


@covers("fedcor", "*")
def correlated_losses(case: Case):
    meta, num = case.meta, len(case["weights"])
    meta.confirm(noise=NOISE)
    covariance = covariance_of(jnp.asarray(case["projection"]).T)
    yield case.compare("covariance", covariance)
    weights = jnp.asarray(case["weights"] if meta["weighted"] else np.ones(num))
    given, everyone = (covariance, weights, jnp.asarray(case["discount"])), jnp.ones(num, bool)
    selected, scores = select_correlated(*given, everyone, meta["m"])
    yield case.compare("selected", selected)
    yield case.compare("scores", scores)
    for client in case["observed"]:
        covariance = condition(covariance, int(client))
    yield case.compare("posterior_covariance", covariance)
    case.excuse("covariance_se", "a kernel that the authors' scripts do not use")
    case.excuse("posterior_mean", "a prediction, which the selection does not read")
    case.excuse("observed_changes", "for the prediction")
