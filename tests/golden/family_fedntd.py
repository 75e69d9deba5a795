"""FedNTD: the authors' loss and rounds, and the printed term."""

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithms import fedntd
from fedjax_het.client.objectives._label_skew import not_true_divergence
from tests.golden.cases import Case, covers
from tests.golden.networks import compare_federation, replay_federation, training_settings
from tests.golden.replay import rate_decay


@covers("fedntd", "loss_*")
def losses(case: Case):
    settings, labels = case.meta, jnp.asarray(case["labels"])
    logits, received = jnp.asarray(case["logits"]), jnp.asarray(case["global_logits"])

    def entropy(logits):
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(logits, labels))

    def term(logits):
        return jnp.mean(not_true_divergence(logits, received, labels, settings["tau"]))

    scale = float(np.abs(case["logits"]).max())  # the rounding of logits of order 300 is left in the terms
    yield case.compare("ce", entropy(logits))
    for name, factor in (("official", settings["tau"] ** 2), ("paper", 1.0)):

        def loss(logits, factor=factor):
            return entropy(logits) + settings["beta"] * factor * term(logits)

        value, gradient = jax.jit(jax.value_and_grad(loss))(logits)
        yield case.compare(f"{name}_ntd", factor * term(logits), 1e-12, scale=scale)
        yield case.compare(f"{name}_loss", value)
        yield case.compare(f"{name}_grad_logits", gradient)


@covers("fedntd", "rounds_*")
def rounds(case: Case):
    settings = case.meta
    cohort = int(settings["sample_ratio"] * len(case["X"]))  # as the released code rounds it
    if cohort != case["selected"].shape[1]:
        raise ValueError(f"sample_ratio means a cohort of {cohort}, and {case['selected'].shape[1]} are selected")
    decay = rate_decay(settings["lr_decay_per_round"])
    algorithm = fedntd(settings["beta"], settings["tau"], learning_rate_schedule=decay, **training_settings(case))
    yield from compare_federation(case, replay_federation(case, algorithm))
    rates = settings["lr"] * np.array([decay(number) for number in range(len(case["selected"]))])
    yield case.compare("lr_per_round", rates)
    case.excuse("teacher_in_train_mode", "the released oversight, without effect here: no dropout, no batch statistics")
