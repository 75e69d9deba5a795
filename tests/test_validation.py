"""Ranges of arguments: every number of a factory has one, and errors name the argument."""

import functools
import inspect
import typing
from collections.abc import Callable
from types import MappingProxyType
from typing import Annotated, Literal

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het import engine, timing
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.configuration import settings
from fedjax_het.client import objectives
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.schedules import SCHEDULES
from fedjax_het.data import AUGMENTATIONS, PARTITIONS, federate, toy
from fedjax_het.errors import InputError
from fedjax_het.models import MODELS, projected
from fedjax_het.server import aggregators, optimizers
from fedjax_het.validation import (
    Count,
    Fraction,
    Keywords,
    KeywordsOf,
    NonNegative,
    Preset,
    constraints,
    validate_arguments,
    with_presets,
)

NAN, INFINITY, TOO_MANY = float("nan"), float("inf"), 2**31
GIVEN = {"num_classes"}  # by the run, not by a user


def factories():
    for registry in (ALGORITHMS, MODELS, PARTITIONS, AUGMENTATIONS, SCHEDULES):
        yield from registry.items()
    for function in (federate, toy, sgd, Training, settings.RunSettings, engine.Simulation.__init__):
        yield function.__qualname__, function


def holds_number(kind) -> bool:
    if typing.get_origin(kind) in (Literal, Callable):
        return False
    return kind in (int, float) or any(map(holds_number, typing.get_args(kind)))


@pytest.mark.parametrize(("name", "factory"), list(factories()))
def test_every_number_that_a_user_sets_has_a_range(name, factory):
    plain = typing.get_type_hints(factory)
    plain.pop("return", None)
    numbers = {argument for argument, kind in plain.items() if holds_number(kind)} - GIVEN
    assert numbers <= constraints(factory).keys()


@pytest.mark.parametrize(
    ("factory", "argument", "value"),
    [
        *((ALGORITHMS[name], "server_learning_rate", value) for name in ALGORITHMS for value in (-1.0, NAN)
          if "server_learning_rate" in inspect.signature(ALGORITHMS[name]).parameters),
        *((factory, "learning_rate", value) for factory in ALGORITHMS.values() for value in (-0.1, INFINITY, 1e39)),
        *((factory, "batch_size", value) for factory in ALGORITHMS.values() for value in (0, TOO_MANY, 2.0, True)),
        *((factory, "epochs", TOO_MANY) for factory in ALGORITHMS.values()),
        *((sgd, "learning_rate", value) for value in (1e-50, 1e-39, np.float64(1e-50))),
        *((timing.log_normal, "step_seconds", value) for value in (1e39, 1e-50, 0.0)),
        (timing.log_normal, "sigma", 1e30),
        (sgd, "momentum", 2.0),
        (sgd, "momentum", 1),
        (sgd, "steps", TOO_MANY),
        (sgd, "learning_rate", "0.1"),
        (sgd, "learning_rate", jnp.array(NAN)),
        (sgd, "learning_rate", np.array([0.1, -0.1])),
        (sgd, "learning_rate_schedule", lambda round: NAN * round),
        (sgd, "learning_rate_schedule", lambda round: 1.0 - round),
        (ALGORITHMS["fedprox"], "mu", -1.0),
        (ALGORITHMS["fedprox"], "mu", 10**400),
        (ALGORITHMS["fedprox_dgc"], "mu", NAN),
        (ALGORITHMS["fednova"], "tau_eff", 0.0),
        (ALGORITHMS["fednova"], "gmf", 1.0),
        (ALGORITHMS["fedld"], "lam", -0.1),
        (ALGORITHMS["fedld"], "fraction", 0.0),
        (aggregators.principal_directions, "warmup_mean_rounds", -1),
        (ALGORITHMS["fedcm"], "alpha", 0.0),
        (ALGORITHMS["fedcm"], "clip", INFINITY),
        (ALGORITHMS["fedadam"], "b2", 1.0),
        (ALGORITHMS["fedadam"], "v0", -1.0),
        (ALGORITHMS["fedavgm"], "server_momentum", -0.1),
        (ALGORITHMS["fedga"], "rounds", 0),
        (aggregators.harmonized_mean, "seed", TOO_MANY),
        (ALGORITHMS["fediir"], "decay", 1.5),
        (ALGORITHMS["fedpac"], "head_learning_rate", -0.1),
        (ALGORITHMS["fedpac"], "threshold", 2.0),
        (ALGORITHMS["fedrd"], "few_shot_share", NAN),
        (ALGORITHMS["fedrd"], "few_shot", ((0, -1),)),
        (ALGORITHMS["fedsr"], "l2r", -1.0),
        (ALGORITHMS["fedsr"], "num_samples", -1),
        (ALGORITHMS["harmofl"], "alpha", -0.1),
        (ALGORITHMS["harmofl"], "band", 2.0),
        (ALGORITHMS["moon"], "temperature", 0.0),
        (ALGORITHMS["moon"], "buffer", 0),
        (objectives.proximal, "mu", -1.0),
        (objectives.dice, "smooth", -1.0),
        (optimizers.adagrad, "tau", 0.0),
        (aggregators.normalized_mean, "tau_eff", INFINITY),
        (projected, "width", 0),
        (functools.partial(SCHEDULES["steps"], (3,)), "factor", INFINITY),
        (SCHEDULES["exponential"], "factor", INFINITY),
        (SCHEDULES["steps"], "milestones", (0, 3)),
        (SCHEDULES["warm_up"], "first", NAN),
        (functools.partial(MODELS["mlp"], 3), "hidden", (8, 10**30)),
        (functools.partial(MODELS["mlp"], 3), "width", NAN),
        (functools.partial(MODELS["mlp"], 3), "width", 1e9),
        (functools.partial(MODELS["unet"], 3), "levels", 0),
        (PARTITIONS["dirichlet"], "alpha", INFINITY),
        (PARTITIONS["shards"], "classes_per_client", 0),
        (AUGMENTATIONS["images"], "crop", (0.0, 1.0)),
        (AUGMENTATIONS["images"], "brightness", INFINITY),
        (AUGMENTATIONS["images"], "hue", 0.6),
        (toy, "label_shift", NAN),
        (toy, "seed", -1),
        (settings.RunSettings, "rounds", TOO_MANY),
        (settings.RunSettings, "availability", NAN),
        (engine.chunked, "size", 0),
    ],
)  # fmt: skip
def test_a_number_outside_its_range_is_refused_by_name(factory, argument, value):
    with pytest.raises(InputError, match=f"^{argument}: "):
        factory(**{argument: value})


@pytest.mark.parametrize(
    ("factory", "options"),
    [
        (ALGORITHMS["fedprox"], {"mu": 0, "momentum": 0.0, "learning_rate": 0.0, "weight_decay": 0}),
        (ALGORITHMS["harmofl"], {"alpha": 0, "decay": 0.0, "band": None, "amplitude_rounds": None}),
        (ALGORITHMS["fedld"], {"lam": 0, "fraction": 1}),
        (ALGORITHMS["fedsr"], {"cmi": 0, "num_samples": 0}),
        (ALGORITHMS["fedadam"], {"v0": "tau2", "b1": 0}),
        (ALGORITHMS["fedavg"], {"steps": 3, "epochs": None}),
        (ALGORITHMS["fedrd"], {"steps": 3}),
        (ALGORITHMS["fedavg"], {"batch_size": np.int64(4), "learning_rate": np.float32(0.1)}),
        (functools.partial(MODELS["mlp"], 3), {"hidden": ()}),
    ],
)
def test_documented_values_are_accepted(factory, options):
    factory(**options)


def test_steps_and_epochs_exclude_each_other():
    with pytest.raises(InputError, match=r"steps: 3 steps and 1 epochs per round are given"):
        sgd(steps=3, epochs=1)


def test_traced_numbers_are_accepted():
    def mu_of_round(mu, rate, count):
        ALGORITHMS["fedprox"](mu=mu, learning_rate=rate, epochs=count)
        return mu

    assert jax.jit(mu_of_round)(-1.0, jnp.array(NAN), 0) == -1.0


def test_members_of_unions_and_sequences_are_checked():
    @validate_arguments
    def build(
        rate: NonNegative | str, sizes: tuple[Count, ...] = (), share: Fraction | None = None, **rest: int
    ) -> int:
        return len(sizes)

    assert build("fast", (1, 2), None) == 2 and build(0, share=1) == 0 and build(1.0, other=-1) == 0
    for arguments in ((-1.0,), (None,), (1.0, (1, 0)), (1.0, 3), (1.0, (), 1.1), (1.0, (), "half")):
        with pytest.raises(InputError, match=r"^(rate|sizes|share): must be "):
            build(*arguments)


def test_a_long_value_is_shortened_in_the_error():
    with pytest.raises(InputError) as refusal:
        ALGORITHMS["fedprox"](mu=10**5000)
    assert len(str(refusal.value)) < 200


@validate_arguments
def part(size: Count = 1, *, scope: Literal["model", "tensor"] = "model") -> tuple:
    return size, scope


@with_presets(released={"form": "long", "inner": {"size": 3, "scope": "tensor"}})
@validate_arguments
def whole(
    form: Literal["short", "long"] | None = "short",
    *,
    inner: Annotated[Keywords, KeywordsOf(part)] = MappingProxyType({}),
    preset: Preset = "default",
) -> tuple:
    return form, part(**inner)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"form": "sort"}, r"form: unknown option 'sort'\. Did you mean 'short'\? Known: long, short\. Or give None\."),
        ({"form": 3}, r"form: must be 'short' or 'long' or None, not 3\."),
        ({"inner": {"scop": "model"}}, r"inner\.scop is unknown\. Did you mean 'scope'\? Known: scope, size\."),
        ({"inner": {"scope": "models"}}, r"inner\.scope: unknown option 'models'\. Did you mean 'model'\?"),
        ({"inner": {"size": 0}}, r"inner\.size: must be a whole number from 1"),
        ({"inner": 3}, r"inner: must be a table of options, not 3\."),
        ({"preset": "relesed"}, r"preset: unknown option 'relesed'\. Did you mean 'released'\?"),
    ],
)
def test_an_unknown_option_is_refused_with_the_nearest(arguments, message):
    with pytest.raises(InputError, match=f"^{message}"):
        whole(**arguments)


def test_passed_options_override_the_preset():
    assert whole() == ("short", (1, "model"))
    assert whole(preset="released") == ("long", (3, "tensor"))
    assert whole("short", inner={"size": 2}, preset="released") == ("short", (2, "tensor"))


PRESETS = [(name, factory.presets) for name, factory in ALGORITHMS.items() if hasattr(factory, "presets")]


@pytest.mark.parametrize(("name", "presets"), PRESETS)
def test_algorithms_with_presets_use_their_options(name, presets):
    assert presets.keys() == {"released"}
    assert presets["released"].keys() < inspect.signature(ALGORITHMS[name]).parameters.keys()
    ALGORITHMS[name](preset="released")


def test_signatures_are_shown_without_constraints():
    @validate_arguments
    def train(rounds: Count, size: Count | None = None, *, kind: Literal["a", "b"] = "a") -> int:
        return rounds

    assert str(inspect.signature(train)) in (
        "(rounds: int, size: Optional[int] = None, *, kind: Literal['a', 'b'] = 'a') -> int",
        "(rounds: int, size: int | None = None, *, kind: Literal['a', 'b'] = 'a') -> int",
    )


def test_simulate_shows_the_arguments_of_a_simulation():
    shown = inspect.signature(engine.simulate).parameters
    assert [*inspect.signature(engine.Simulation).parameters, "progress", "stop"] == list(shown)
    assert shown["rounds"].annotation is int and "Range(" not in str(inspect.signature(engine.simulate))
