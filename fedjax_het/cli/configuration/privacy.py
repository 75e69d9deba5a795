"""Privacy of the runs of a config: the noise that its budget asks for, and the epsilon after every round."""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedjax_het import participation
from fedjax_het.errors import InputError
from fedjax_het.privacy import (
    Accountant,
    FixedSizeSampling,
    LocalNoise,
    PoissonSampling,
    Sampling,
    epsilon,
    noise_multiplier,
    resolve_accountant,
)
from fedjax_het.uplink import NoiseStrategy, gaussian_mechanism, matrix_mechanism, noise_strategy
from fedjax_het.validation import OpenFraction, Positive, check_constraints, constraints

Settings = Mapping[str, Any]
MULTIPLIER = "noise_multiplier"
FIGURE = "privacy/epsilon"
"""The name of epsilon in metrics.jsonl."""
_epsilon = functools.cache(epsilon)  # seconds of work for truncated sampling, and asked several times
_MECHANISMS = (gaussian_mechanism.__name__, matrix_mechanism.__name__)
_OUTSIDE = "training losses, evaluations, diagnostics, numbers of examples, and the draws of clients"


@dataclass(frozen=True, kw_only=True)
class PrivacyBudget:
    """The settings of config.privacy.

    Args:
        delta: The delta of the guarantee; well below one over the number of clients.
        epsilon: The epsilon after the last round, which determines the noise multiplier. None: the reverse.
        accountant: "pld", "rdp", or "auto", the tightest one for the sampling of clients.
    """

    delta: OpenFraction
    epsilon: Positive | None = None
    accountant: Accountant = "auto"

    def __post_init__(self):
        check_constraints(constraints(PrivacyBudget), vars(self))


def resolve_noise(settings: Settings, num_clients: int, resolved: Settings) -> Settings:
    """Set the noise multiplier of settings with an epsilon to the smallest value that meets it.

    Args:
        settings: complete settings.
        num_clients: the number of clients.
        resolved: the record of resolved.json, whose noise multiplier is used again.

    Raises:
        InputError: There is no noise, both numbers are set, no guarantee is known for the sampling of clients, or
            dp-accounting is missing.
    """
    if "privacy" not in settings:
        return settings
    budget, (place, table) = settings["privacy"], _find_mechanism(settings)
    sampling, given = make_sampling(settings, num_clients), table[MULTIPLIER]
    rounds = 1 if _make_strategy(table) else settings["rounds"]
    if (given is None) == (budget["epsilon"] is None):
        problem = "neither is set" if given is None else "both are set"
        raise InputError(
            f"config.privacy.epsilon: {problem}, it and config.uplink.{place}.{MULTIPLIER}, and one determines the "
            "other. Set exactly one of them."
        )
    rest = rounds, budget["delta"], budget["accountant"]
    if given is not None:
        _epsilon(given, sampling, *rest)  # refused now rather than at the first evaluation
        return settings
    found = resolved.get(MULTIPLIER) or noise_multiplier(budget["epsilon"], sampling, *rest)
    stages = list(settings["uplink"])
    stages[place] = {**table, MULTIPLIER: found}
    return {**settings, "uplink": stages}


def describe_noise(settings: Settings) -> dict[str, float]:
    """The entry of resolved.json for settings with a budget: the noise multiplier, {} without one."""
    return {MULTIPLIER: _find_mechanism(settings)[1][MULTIPLIER]} if "privacy" in settings else {}


def epsilon_after(settings: Settings, num_clients: int, rounds: int) -> float:
    """The epsilon of the first rounds of a run with a resolved noise multiplier."""
    budget, (_, table) = settings["privacy"], _find_mechanism(settings)
    sampling, z = make_sampling(settings, num_clients), table[MULTIPLIER]
    if strategy := _make_strategy(table):  # one mechanism, whose first rounds a client can move less
        z, rounds = z * strategy.sensitivity() / strategy.sensitivity(rounds), 1
    return _epsilon(z, sampling, rounds, budget["delta"], budget["accountant"])


def describe(settings: Settings, num_clients: int) -> str:
    """Describe the guarantee of a whole run, for whom it is, and what it does not cover."""
    _, table = _find_mechanism(settings)
    sampling, budget = make_sampling(settings, num_clients), settings["privacy"]
    total = epsilon_after(settings, num_clients, settings["rounds"])
    kind, how = resolve_accountant(sampling, budget["accountant"]).upper(), str(sampling)
    if strategy := _make_strategy(table):
        how = (
            f"relative to the sensitivity {strategy.sensitivity():.4g} of correlated noise ({table['strategy']}), with "
            f"at least {strategy.separation} rounds from one participation of a client to its next"
        )
    return (
        f"epsilon {total:.4g} at delta {budget['delta']:g} after {settings['rounds']} rounds, to {sampling.neighbors}\n"
        f"noise multiplier {table[MULTIPLIER]:.6g}, {how}; {kind} accountant\n"
        f"outside of the guarantee: {_OUTSIDE}"
    )


def make_sampling(settings: Settings, num_clients: int) -> Sampling:
    """The sampling of clients that the accounting of a run assumes.

    Clients that do not report count as if they had: an absent client adds zeros.

    Raises:
        InputError: No guarantee is known for it.
    """
    _, table = _find_mechanism(settings)
    rule, size = settings.get("participation"), settings["cohort_size"]
    if rule and rule["name"] in participation.SELECTIONS:
        raise InputError(
            f"config.privacy: '{rule['name']}' selects clients by numbers that they report without noise, which no "
            "guarantee covers. Use 'poisson', or leave config.participation out."
        )
    if _make_strategy(table):
        return PoissonSampling(1.0)  # without amplification; the stage checks the distance of participations
    if table["noise_at"] == "clients":
        return LocalNoise()
    if rule is None:
        return FixedSizeSampling(num_clients, size) if size else PoissonSampling(settings["availability"])
    if rule["name"] != participation.poisson.__name__:
        raise InputError(
            f"config.privacy: no guarantee is known for clients that are drawn by '{rule['name']}'. Use 'poisson', or "
            "leave config.participation out."
        )
    probability = rule["probability"]
    slots = participation.poisson(probability, rule["slots"]).size(num_clients)
    return PoissonSampling(probability, num_clients, slots)


def _find_mechanism(settings: Settings) -> tuple[int, Settings]:
    """(The place in config.uplink, the table) of the stage that adds noise."""
    for place, table in enumerate(settings.get("uplink", ())):
        if table["name"] in _MECHANISMS:
            return place, table
    raise InputError(
        f"config.privacy: no noise is added. Add a stage to config.uplink: {{'name': '{_MECHANISMS[0]}', 'norm': 1.0}}."
    )


def _make_strategy(table: Settings) -> NoiseStrategy | None:
    """The strategy of a stage with correlated noise; None for independent noise."""
    if table["name"] != matrix_mechanism.__name__:
        return None
    names = ("rounds", "separation", "bands", "num_buffers", "normalize_columns")
    return noise_strategy(table["strategy"], *(table[name] for name in names))
