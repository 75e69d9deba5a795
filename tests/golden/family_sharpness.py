"""MoFedSAM, FedGAMMA, FedSpeed and FedSMOO: FL-Simulator's code, and the equations with epsilon 0 and no clip."""

from dataclasses import replace
from functools import partial

import numpy as np

from fedjax_het.algorithms import fedgamma, fedsmoo, fedspeed, mofedsam
from fedjax_het.client.gradients import control_variate_gradient
from fedjax_het.client.local_updates import sgd
from fedjax_het.client.sharpness import sharpness_aware
from tests.golden.ascents import Ascents, replay_ascents
from tests.golden.cases import Case, Comparison, covers

CLIP, ZERO = 10, "zero_gradient_10"


def _released(case: Case) -> dict:
    """The options of the released code; its clip acts only in the cases that are named after it."""
    case.meta.confirm(clip=CLIP)
    if case.name == ZERO:
        case.meta.confirm(lamb=0.1, alpha=0.1, server_learning_rate=1.0)  # of all methods at once
    return {"epsilon": case.meta["epsilon"], "clip": float(CLIP) if case.name.startswith("clip_") else None}


EXACT = {"epsilon": 0.0, "clip": None}


def _common(case: Case, ours: Ascents) -> list[Comparison]:
    mine = {"x": ours.x, "w_adv": ours.nearby, "local": ours.local}
    return [case.compare(name, values) for name, values in mine.items() if name in case]


def _published(ours: Ascents, name: str) -> np.ndarray:
    return np.stack([state.server.published[name]["w"] for state in ours.states])


def _memory(ours: Ascents, name: str) -> np.ndarray:
    return np.stack([state.clients.memory[name]["w"] for state in ours.states])


@covers("mofedsam", "*")
def momentum(case: Case):
    def build(options: dict, **local):
        rate = case.meta["server_learning_rate"]
        built = mofedsam(alpha=case.meta["alpha"], rho=case.meta["rho"], server_learning_rate=rate, **options, **local)
        if "steps_assumed" not in case.meta or options == EXACT:
            return built
        assumed = case.meta["steps_assumed"] * case.meta["lr"]  # of client 0, for all clients
        return replace(built, reports={"momentum": lambda problem, view: np.asarray(assumed)})

    def used(ours: Ascents) -> np.ndarray:
        made = _published(ours, "momentum")
        return np.concatenate([np.zeros_like(made[:1]), made[:-1]])

    released = replay_ascents(case, partial(build, _released(case)))
    yield from _common(case, released)
    yield case.compare("delta_used", used(released))
    if "x_paper" in case:
        exact = replay_ascents(case, partial(build, EXACT))
        yield case.compare("x_paper", exact.x)
        if "delta_used_paper" in case:
            yield case.compare("delta_used_paper", used(exact))
    if "x_wrong_unscaled" in case:
        yield case.refute("x_wrong_unscaled", released.x, 0.1)


@covers("fedgamma", "*")
def control_variates(case: Case):
    def build(options: dict, **local):
        built = fedgamma(
            server_learning_rate=case.meta["server_learning_rate"], rho=case.meta["rho"], **options,
            **local | {"weight_decay": 0.0},
        )  # fmt: skip
        rule = control_variate_gradient(sharpness_aware(case.meta["rho"], epsilon=options["epsilon"]))
        return built if "wd" not in case.meta else replace(built, local_update=sgd(**local, gradient=rule))

    released = replay_ascents(case, partial(build, _released(case)))
    yield from _common(case, released)
    yield case.compare("c", _published(released, "control"))
    yield case.compare("c_i", _memory(released, "control"))
    if "x_paper" in case:
        exact = replay_ascents(case, partial(build, EXACT))
        yield case.compare("x_paper", exact.x)
        yield case.compare("c_paper", _published(exact, "control"))
        yield case.compare("c_i_paper", _memory(exact, "control"))


@covers("fedspeed", "*")
def dynamic_regularization(case: Case):
    case.meta.confirm(prox="lamb = 1/lambda of the paper")
    build = partial(fedspeed, case.meta["lamb"], case.meta["rho"])
    released = replay_ascents(case, partial(build, **_released(case)))
    yield from _common(case, released)
    yield case.compare("h_i", _memory(released, "displacement"))
    if "x_paper" not in case:
        return
    yield case.compare("x_exact", replay_ascents(case, partial(build, **EXACT)).x)
    yield case.compare("x_participants", replay_ascents(case, partial(build, server="participants", **EXACT)).x)
    mix = case.meta["mix_of_x_paper"]
    printed = replay_ascents(case, partial(build, server="participants", normalised=False, mix=mix, **EXACT))
    yield case.compare("x_paper", printed.x)
    yield case.compare("w_adv_paper", printed.nearby)
    yield case.compare("correction_paper", -case.meta["lamb"] * _memory(printed, "displacement"))


@covers("fedsmoo", "*")
def constrained_perturbations(case: Case):
    build = partial(fedsmoo, case.meta["lamb"], case.meta["rho"])
    released = replay_ascents(case, partial(build, **_released(case)))
    yield from _common(case, released)
    yield case.compare("h_i", _memory(released, "displacement"))
    yield case.compare("mu", _memory(released, "perturbation"))
    yield case.compare("s", _published(released, "perturbation"))
    if "x_exact" not in case:
        return
    exact = replay_ascents(case, partial(build, **EXACT))
    yield case.compare("x_exact", exact.x)
    yield case.compare("mu_exact", _memory(exact, "perturbation"))
    yield case.compare("s_exact", _published(exact, "perturbation"))
    for name in ("x_with_last", "s_with_last"):
        case.excuse(name, "s with the participants' last perturbations, which the released code leaves out")
