"""Robust rules: ByzFL's, RFA's, centred clipping's and FLTrust's numbers, and four released scores of Krum."""

import jax.numpy as jnp
import numpy as np

from fedjax_het.server import aggregators as rules
from fedjax_het.server.aggregators import _robust_gram as gram_rules
from fedjax_het.server.aggregators import _robust_steps as steps
from fedjax_het.server.aggregators._robust_coordinates import median_of_columns
from tests.golden.cases import Case, Comparison, covers
from tests.golden.replay import aggregate, combine, combine_all

TIED = ("meamed", "mda", "mda_subset", "nnm", "nnm_*", "arc_nnm_trmean", "multikrum_*")  # results that depend on ties
TIE = 1e-9  # choices with a smaller relative margin depend on rounding


@covers("robust", "byzfl_*")
def byzfl(case: Case):
    stack, f = case["X"], int(case["f"])
    size, gram, everyone = len(stack), jnp.asarray(stack @ stack.T), jnp.ones(len(stack), bool)
    has_nnm_ties = bool(np.any(case["nnm_margin"] < TIE))

    # ---- the steps
    near = np.asarray(steps.mix_neighbours(gram, everyone, f))
    is_clear = case["nnm_margin"] >= TIE
    if is_clear.any():
        yield case.compare("nnm_neighbours", near[is_clear] > 0, part=lambda stored: stored[is_clear])
    clipped = np.diagonal(steps.clip_rows(gram, everyone, float(case["clip_c"])))
    cut = np.diagonal(steps.clip_longest(gram, everyone, f))
    yield case.compare("clip_scale", clipped)
    yield case.compare("arc_scale", cut)
    yield case.compare("arc_threshold", np.linalg.norm(cut[:, None] * stack, axis=1).max())
    case.excuse("arc_num_clipped", "arc_scale holds which ones are clipped")
    for name, made in (("clip", clipped[:, None] * stack), ("arc", cut[:, None] * stack), ("nnm", near @ stack)):
        rows = is_clear if name == "nnm" else np.ones(size, bool)
        if name in case and rows.any():
            yield case.compare(name, made[rows], part=lambda stored, rows=rows: stored[rows])
    for length in (2, 3):
        place = np.argsort(case[f"bucket_order_s{length}"])
        coefficients, is_bucket = steps.bucket_means(jnp.asarray(place), everyone, length)
        means = coefficients @ stack
        if f"bucket_s{length}" in case:
            yield case.compare(f"bucket_s{length}", means)
        yield case.compare(f"bucket_s{length}_median", median_of_columns(means, is_bucket))

    # ---- Krum: where scores tie, rounding chooses among the rows that are marked
    for neighbours, number in (("byzfl", 1), ("paper", 2)):
        if f"krum_scores_nf{number}" not in case:
            continue
        scores = gram_rules.krum_scores(gram, everyone, f, neighbours)
        yield case.compare(f"krum_scores_nf{number}", scores, scale=float(jnp.max(jnp.diagonal(gram))))
        allowed = stack[case[f"krum_ok_nf{number}"]]
        yield nearest_of(case, f"krum_{neighbours}", combine(rules.krum(f, neighbours=neighbours), stack), allowed)
    mixed = near @ stack
    if not has_nnm_ties:
        ours = combine(rules.krum(f, neighbours="byzfl", before=("nnm",)), stack)
        yield nearest_of(case, "nnm_krum", ours, mixed[case["nnm_krum_ok"]])

    # ---- the other rules, with or without steps before them
    ours = {
        "median": rules.coordinate_median(),
        "trmean": rules.trimmed_mean(f),
        "norm_bound_mean": rules.norm_bounded_mean(float(case["clip_c"])),
        "nnm_trmean": rules.trimmed_mean(f, before=("nnm",)),
        "nnm_median": rules.coordinate_median(f, before=("nnm",)),
        "nnm_geomed_nu1e-1_T3": rules.geometric_median(f, smoothing=0.1, num_steps=3, before=("nnm",)),
        "arc_nnm_trmean": rules.trimmed_mean(f, before=("arc", "nnm")),
    }
    for name in case.matching("geomed_*"):
        _, smoothing, num_steps = name.split("_")
        ours[name] = rules.geometric_median(smoothing=float(smoothing[2:]), num_steps=int(num_steps[1:]))
    for name in case.matching("cclip_*"):
        _, num_steps, factor = name.split("_")
        radius = float(factor[1:]) * float(case["clip_c"])
        ours[name] = rules.centred_clipping(radius, int(num_steps[1:]))
    if case["meamed_is_unique"]:
        ours["meamed"] = rules.mean_around_median(f)
    if "mda" in case and case["mda_is_unique"]:
        ours["mda"] = rules.minimum_diameter_mean(f)
        kept = np.flatnonzero(gram_rules.subset_of_minimum_diameter(gram, everyone, f))
        yield case.compare("mda_subset", kept)
    if case["multikrum_margin"] >= TIE:
        ours["multikrum_byzfl"] = rules.multi_krum(f, neighbours="byzfl")
    if "multikrum_paper" in case and case["multikrum_paper_margin"] >= TIE:
        ours["multikrum_paper"] = rules.multi_krum(f, size - f - 2)
        ours["multikrum_paper_m1"] = rules.multi_krum(f, 1)
    for name, result in combine_all(ours, stack).items():
        if not (has_nnm_ties and "nnm" in name):
            yield case.compare(name, result)
    if "mda" in case:
        kept = np.asarray(gram_rules.subset_of_minimum_diameter(gram, everyone, f))
        diameter = np.sqrt(np.max(np.asarray(steps.squared_distances(gram))[np.ix_(kept, kept)]))
        scale = float(jnp.sqrt(jnp.max(jnp.diagonal(gram))))
        yield case.compare("mda_diameter", diameter, 1e-7, scale=scale)
    case.excuse("median_lower", "torch's median is the lower middle value; ours averages both")
    case.excuse("krum_scores_unsquared", "plain distances, another code's score")
    for pattern in TIED:
        case.excuse_unread(pattern, "ties, which rounding decides")


def nearest_of(case: Case, name: str, ours: np.ndarray, allowed: np.ndarray) -> Comparison:
    """Ours and the stored choice must be among the allowed rows."""
    stored = case.compare(name, allowed[np.argmin(np.linalg.norm(allowed - case[name], axis=1))])
    errors = np.max(np.abs(allowed - ours), axis=1) / max(float(np.max(np.abs(allowed))), 1e-300)
    return stored._replace(error=max(stored.error, float(errors.min())))


@covers("robust", "krum_witnesses_*")
def krum_witnesses(case: Case):
    stack, f, k = case["X"], int(case["f"]), int(case["k"])
    gram, everyone, size = jnp.asarray(stack @ stack.T), jnp.ones(len(stack), bool), len(stack)
    for neighbours in ("paper", "byzfl"):
        scores = gram_rules.krum_scores(gram, everyone, f, neighbours)
        yield case.compare(f"index_{neighbours}", np.argmin(scores))
        if neighbours == "paper":
            yield case.compare("krum_scores_paper", scores)
    ours = {
        "krum_paper": rules.krum(f),
        "krum_byzfl": rules.krum(f, neighbours="byzfl"),
        "multikrum_paper_k": rules.multi_krum(f, k),
        "multikrum_paper_nf2": rules.multi_krum(f, size - f - 2),
        "brute_mda": rules.minimum_diameter_mean(f),
    }
    for name, result in combine_all(ours, stack).items():
        yield case.compare(name, result)
    case.excuse("*unsquared*", "plain distances, the score of other codes")
    case.excuse("*fourth*", "distances squared twice, the score of another code")


@covers("robust", "cclip_rounds_*")
def clipping_rounds(case: Case):
    stacks, radius, num_steps = case["X"], float(case["tau"]), int(case["L"])
    aggregator, state, results = rules.centred_clipping(radius, num_steps), None, []
    for stack in stacks:
        update, state = aggregate(aggregator, {"params": {"w": stack}}, state=state)
        results.append(np.asarray(update["params"]["w"]))
    for name in ("v", "v_official", "v_byzfl"):
        yield case.compare(name, np.stack(results))


@covers("robust", "fltrust_*")
def trust_bootstrapping(case: Case):
    rows = np.concatenate([case["g0"][None], case["X"]])
    ours = combine(rules.fltrust(0), rows)
    yield case.compare("paper", ours)
    yield case.compare("out", ours, 1e-6)
    is_root = jnp.arange(len(rows)) == 0
    _, trust = gram_rules.trust_coefficients(jnp.asarray(rows @ rows.T), jnp.ones(len(rows), bool), is_root)
    yield case.compare("trust", trust[1:], scale=1.0)


@covers("robust", "rfa_official_*")
def released_geometric_median(case: Case):
    stack, counts, cap = case["X"], case["n_samples"], int(case["maxiter"])
    num_calls, weights = int(case["num_oracle_calls"]), counts / counts.sum()
    options = {"start": "mean", "smoothing": 1e-5, "weighting": "samples"}
    yield case.compare("out", combine(rules.geometric_median(num_steps=cap, tolerance=1e-6, **options), stack, counts))
    points = [combine(rules.mean(), stack, counts)]
    points += [combine(rules.geometric_median(num_steps=n, **options), stack, counts) for n in range(1, num_calls)]
    objectives = [weights @ np.linalg.norm(stack - point, axis=1) for point in points]
    yield case.compare("objective", objectives, scale=float(np.abs(stack).max()))
    yield case.compare("num_oracle_calls", len(objectives))


@covers("robust", "witness_cw_*")
def third_party_coordinates(case: Case):
    stack, used = case["X"], int(case["b_used"])
    ours = {
        "median": rules.coordinate_median(),
        "trmean": rules.trimmed_mean(used),
        "rfa_T8_nu1e_1": rules.geometric_median(num_steps=8, smoothing=0.1),
    }
    for name, result in combine_all(ours, stack).items():
        yield case.compare(name, result)
    if int(case["b"]) != used:
        case.excuse("b", "2 b >= m is refused here, and lowered silently there; b_used fits")
