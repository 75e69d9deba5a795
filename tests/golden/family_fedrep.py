"""FedRep and FedBABU: the authors' codes, and FedRep in FedBABU's repository and in PFLlib."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax

from fedjax_het.algorithms import fedbabu, fedrep
from fedjax_het.client.local_updates import sequential, sgd
from fedjax_het.client.schedules import steps
from fedjax_het.engine.round.program import Round
from fedjax_het.sharing import HEAD
from tests.golden.cases import Case, covers
from tests.golden.family_fedper import closing_pass, compare_with_unasked, released_optimizer
from tests.golden.networks import Network, batches_as_data
from tests.golden.toy_leaves import ONE_BY_ONE, Toy, completed, own_models, run_rounds, stored_weighting

UNASKED = "a client that was never asked has the mean head of the last cohort, by shared storage"
MOMENTUM = "the first body step carries the momentum of the head phase, and the fixed head moves on"


@covers("fedrep", "official_*")
def released_fedrep(case: Case):
    """With zero_grad "zeros" the fixed head drifts in `v` as well."""
    settings, toy = case.meta, Toy(case)
    settings.confirm(weight_decay_on="weights (parts 0 and 2), not biases")
    assert settings["zero_grad"] in ("none", "zeros")
    assert settings["head_epochs"] + settings["body_epochs"] == settings["local_epochs"]
    algorithm, tapes = _fedrep(case, optimizer=released_optimizer(case), weighting=stored_weighting(case))
    states = toy.replay(algorithm, case, tapes)
    yield from compare_with_unasked(case, toy, states, completed(states))
    yield from closing_pass(case, toy, algorithm, states[-1])


def _fedrep(case: Case, weighting: str = "samples", **training):
    """(The recipe, tapes [..., steps, d] whose head entries are the head phase's and the others the body's.)"""
    settings, is_body = case.meta, Toy(case).is_body
    num_head, num_body = (settings["batches_per_epoch"] * settings[name] for name in ("head_epochs", "body_epochs"))
    assert case["tapes"].shape[-2] == num_head + num_body
    tapes = np.zeros((*case["tapes"].shape[:-2], max(num_head, num_body), len(is_body)))
    tapes[..., :num_head, ~is_body] = case["tapes"][..., :num_head, ~is_body]
    tapes[..., :num_body, is_body] = case["tapes"][..., num_head:, is_body]
    training |= ONE_BY_ONE
    algorithm = fedrep(head_epochs=1, steps=num_body, weighting=weighting, **training)
    if num_head < num_body:  # where an epoch of the stored gradients has more steps than the head phase
        phases = (sgd(steps=num_head, only=HEAD, **training), sgd(steps=num_body, only=f"!{HEAD}", **training))
        algorithm = replace(algorithm, local_update=sequential(*phases))
    return algorithm, tapes


@covers("fedrep", "client_*")
def one_client(case: Case):
    settings, toy = case.meta, Toy(case)
    rates = {name: settings[name] for name in ("learning_rate", "momentum", "weight_decay")}
    algorithm, tapes = _fedrep(case, **rates)
    round, everyone = toy.round(algorithm, 1, 1), np.zeros((1, 1), int)
    state = run_rounds(round, [toy.data(tapes[None], case["h"])], everyone)[0]
    trained = toy.vector(completed([state]))[0, 0]
    yield case.compare("p_clean", trained)
    if settings["momentum"]:
        yield case.contain("p", trained, case["p_clean"], MOMENTUM, "what separate optimizers give, p_clean")
    else:
        yield case.compare("p", trained)


@covers("fedrep", "e2e_*")
def network_of_fedrep(case: Case):
    """A round in two parts, with the batches of the head phase and of the body phase."""
    settings = case.meta
    settings.confirm(weight_decay_on="weights, not biases")
    optimizer, num_head = released_optimizer(case), settings["head_epochs"] * settings["batches_per_epoch"]
    resting = optax.masked(optax.set_to_zero(), lambda params: {name: name == "body" for name in params})
    common = {"weighting": "uniform", "shuffle": False, "batch_size": case["X"].shape[3]}
    phases = [
        (fedrep(head_epochs=1, optimizer=optax.chain(optimizer, resting), **common), slice(num_head)),
        (fedrep(head_epochs=0, optimizer=optimizer, **common), slice(num_head, None)),
    ]
    v, bodies = _train_network(case, phases)
    yield case.compare("v_paper", v)
    yield case.compare("body_paper", bodies)
    assert settings["paper_differs_v"] > 1e-9 and settings["paper_differs_body"] > 1e-9
    yield case.contain("v", v, case["v_paper"], UNASKED, "what it has with its own initial head, v_paper")


def _train_network(case: Case, phases: list):
    """(own models of all clients, the server's body) after each round of phases, each with its part of the batches."""
    network, settings = Network.from_case(case), case.meta
    num_clients, cohort_size = settings["clients"], settings["cohort"]
    num_epochs = settings["head_epochs"] + settings["body_epochs"]
    assert case["X"].shape[2] == num_epochs * settings["batches_per_epoch"]
    rounds: list[Round] = [network.round(algorithm, num_clients, cohort_size) for algorithm, _ in phases]
    state, models, bodies = None, [], []
    for inputs, labels, cohort in zip(case["X"], case["y"], case["selected"], strict=True):
        for round, (_, part) in zip(rounds, phases, strict=True):
            data = batches_as_data(inputs[:, part], labels[:, part], num_clients, cohort)
            (state,) = run_rounds(round, [data], cohort[None], state)
        models.append(network.vector(completed([state]))[0])
        bodies.append(network.vector(state.server.shared["params"]))
    return np.stack(models), np.stack(bodies)


@covers("fedbabu", "e2e_*")
def network_of_fedbabu(case: Case):
    settings = case.meta
    settings.confirm(weight_decay_on="weights, not biases", weight_decay=0.0)
    algorithm = fedbabu(
        fine_tune_epochs=0,
        weighting="uniform",
        learning_rate=settings["learning_rate"],
        learning_rate_schedule=steps([settings["rounds"] // 2, 3 * settings["rounds"] // 4]),
        momentum=settings["momentum"],
        shuffle=False,
        batch_size=case["X"].shape[3],
    )
    v, bodies = _train_network(case, [(algorithm, slice(None))])
    assert settings["paper_differs_v"] < 1e-9 and settings["paper_differs_body"] < 1e-9
    yield case.compare("v", v)
    yield case.compare("v_paper", v)
    yield case.compare("body_paper", bodies)


@covers("fedbabu", "official_*")
def released_fedbabu(case: Case):
    settings, toy = case.meta, Toy(case)
    settings.confirm(weights="uniform", shared=settings["trained"])
    factors = jnp.asarray(case["lr_round"] / settings["learning_rate"])
    algorithm = fedbabu(
        part=settings["trained"],
        fine_tune_epochs=1,
        fine_tune_learning_rate=settings["fine_tune_learning_rate"] or 0.0,
        fine_tune_part=settings["fine_tune_part"] or "full",
        weighting="uniform",
        learning_rate=settings["learning_rate"],
        learning_rate_schedule=lambda round: factors[round],
        momentum=settings["momentum"],
        weight_decay=settings["weight_decay"],
        **ONE_BY_ONE,
    )
    states = toy.replay(algorithm, case)
    v = toy.vector(completed(states))
    yield case.compare("v", v)
    yield case.compare("v_kept", v)
    is_fixed = toy.is_body if settings["trained"] == "head" else ~toy.is_body
    assert np.array_equal(v[..., is_fixed], np.broadcast_to(toy.start, v.shape)[..., is_fixed])
    if settings["fine_tune_part"]:
        round = toy.round(algorithm, len(case["h"]), case["selected"].shape[1])
        tuned = own_models(round, states[-1], toy.data(case["final_tapes"], case["h"]))
        yield case.compare("final_v", toy.vector(tuned["params"]))
