"""FedGH, PCGrad in the same order, and the hierarchical method that FedLD's tables call FedGH."""

from typing import get_args

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.diagnostics._updates import num_conflicts
from fedjax_het.server.aggregators import harmonized_mean, hierarchical_mean
from fedjax_het.server.aggregators._conflict import ConflictTest, harmonized_edit
from fedjax_het.server.aggregators._hierarchical import Reference
from tests.golden.cases import Case, covers
from tests.golden.released_rules import tournament_mean
from tests.golden.replay import aggregate, combine, combine_all


@covers("fedgh", "paper_*")
def harmonized(case: Case):
    stack, counts = case["G"], case["n_samples"]
    size, scale = len(stack), float(np.linalg.norm(stack, axis=1).max())
    gram, place = jnp.asarray(stack @ stack.T), np.arange(size)
    turns = np.minimum.outer(place, place) * size + np.maximum.outer(place, place)
    rules = {f"agg_{test}": harmonized_mean(test) for test in get_args(ConflictTest)}
    rules |= {f"agg_uniform_{test}": harmonized_mean(test, "uniform") for test in get_args(ConflictTest)}
    for name, ours in combine_all(rules, stack, counts).items():
        yield case.compare(name, ours, scale=scale)
    for test in get_args(ConflictTest):
        if (name := f"harmonized_{test}") in case:
            coefficients = jax.jit(harmonized_edit(test))(gram, jnp.ones(size, bool), jnp.asarray(turns))
            yield case.compare(name, coefficients @ stack, scale=scale)
    yield case.compare("n_conflicting_pairs_original", num_conflicts(gram))
    for test in ("current", "sequential"):
        case.excuse(f"n_conflicting_pairs_{test}", "tests that fired on the way; the harmonized rows hold them")


@covers("fedgh", "pcgrad_*")
def pcgrad(case: Case):
    """The default test with pairs in lexicographic order is PCGrad with partners in order of their index."""
    stack = case["G"]
    yield case.compare("order", np.arange(len(stack)))
    scale = float(np.linalg.norm(stack, axis=1).max())
    yield case.compare("agg_uniform", combine(harmonized_mean("current", "uniform"), stack), scale=scale)
    case.excuse("losses", "FedGH takes no notice of them")


@covers("fedgh", "official_hgd_*")
def hierarchical(case: Case):
    stack = case["G"]
    scale = float(np.linalg.norm(stack, axis=1).max())
    has_opposites = not case.is_finite("agg_feddm")
    state = Reference({"params": {"w": jnp.asarray(case["history_in"])}}, jnp.array(True))
    for name, eps in (("agg_fedld_repo", 1e-7), ("agg_feddm", 0.0)):
        update, after = aggregate(hierarchical_mean(eps), {"params": {"w": stack}}, state=state)
        if eps:
            yield case.compare("history_out", after.average["params"]["w"])
        elif has_opposites:
            expected = tournament_mean(stack, case["history_in"])
            held_to = "a transcription in which the second of the pair stays as it is"
            fault = "0/0 for an exactly opposite last pair"
            yield case.contain(name, update["params"]["w"], expected, fault, held_to, scale=scale)
            continue
        yield case.compare(name, update["params"]["w"], 1e-7 if has_opposites else 1e-9, scale=scale)
