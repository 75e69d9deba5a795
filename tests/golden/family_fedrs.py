"""FedRS: the authors' loss and rounds, the printed form, and a third party's rounds with it."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import optax

from fedjax_het import tree
from fedjax_het.algorithm import LocalUpdate
from fedjax_het.algorithms import fedrs
from fedjax_het.client.gradients import clipped_gradient
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.objectives._label_skew import restriction
from tests.golden.cases import Case, covers
from tests.golden.networks import compare_federation, replay_federation, training_settings


@covers("fedrs", "loss_*")
def losses(case: Case):
    features, weight, labels = (jnp.asarray(case[name]) for name in ("features", "weight", "labels"))
    counts, alpha = jnp.asarray(case["counts"], float), case.meta["alpha"]

    def loss(logits, scale):
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scale * logits, labels))

    for scaling, name, logit_name in (("share", "official", "code"), ("missing", "paper", "paper")):
        scale = restriction(counts, alpha, scaling)
        yield case.compare("scale_code" if scaling == "share" else "scale_paper", scale)
        value_and_gradients = jax.jit(jax.value_and_grad(lambda f, w, s=scale: loss(f @ w.T, s), (0, 1)))
        value, gradients = value_and_gradients(features, weight)
        yield case.compare(f"{name}_loss", value)
        yield case.compare(f"{name}_grad_features", gradients[0])
        yield case.compare(f"{name}_grad_weight", gradients[1])
        yield case.compare(f"{logit_name}_grad_logits", jax.jit(jax.grad(loss))(features @ weight.T, scale))
    yield case.compare("official_logits", restriction(counts, alpha, "share") * (features @ weight.T))


@covers("fedrs", "rounds_s*")
def released_rounds(case: Case):
    """At least 5 steps, however few a client's epochs have, are the test's own: ours are epochs, or a number."""
    settings = case.meta
    local = training_settings(case)
    epochs, steps, clip = local.pop("epochs", None), settings.get("local_steps"), settings["max_grad_norm"]
    algorithm = fedrs(settings["alpha"], preset="released", clip=clip, steps=steps or 5, **local)
    taken, counts = case["steps_taken"], case["n_samples"]
    own_steps = {int(counts[i]): int(t) for i, t in zip(case["selected"].ravel(), taken.ravel(), strict=True)}
    for count, number in own_steps.items():
        batches = -(-count // local["batch_size"])
        if number != (steps or max(epochs * batches, 5)):
            raise ValueError(f"{number} steps for {count} examples are not what the settings say")
    if len(set(own_steps.values())) > 1:
        algorithm = replace(algorithm, local_update=_steps_by_count(own_steps, clip, local))
    yield from compare_federation(case, replay_federation(case, algorithm))


def _steps_by_count(own_steps: dict[int, int], clip: float, local: dict) -> LocalUpdate:
    updates = {steps: sgd(**local, steps=steps, gradient=clipped_gradient(clip)) for steps in set(own_steps.values())}

    def train(problem, view, key):
        trained = {steps: update.train(problem, view, key) for steps, update in updates.items()}
        result, *_ = trained.values()
        for count, steps in own_steps.items():
            result = tree.where(view.data.train.count == count, trained[steps], result)
        return result

    return LocalUpdate(train, lambda count: count, local["batch_size"])


@covers("fedrs", "rounds_paper_*")
def printed_rounds(case: Case):
    algorithm = fedrs(case.meta["alpha"], **training_settings(case))
    yield from compare_federation(case, replay_federation(case, algorithm))
