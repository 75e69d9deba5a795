"""Privacy of single examples in the runs of a config: the noise of each client, and the epsilon of each client."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import jax
import numpy as np

from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import LocalUpdate
from fedjax_het.data import Federation
from fedjax_het.engine import Simulation
from fedjax_het.engine.round.participation import Participation, count_draws
from fedjax_het.errors import InputError
from fedjax_het.privacy import Accountant, RecordPrivacy, record_epsilons, record_noise
from fedjax_het.validation import OpenFraction, Positive, check_constraints, constraints

Settings = Mapping[str, Any]
TABLE, MULTIPLIER, RECORD = "record_privacy", "noise_multiplier", "record_noise"
COLUMN = "record_epsilon"
"""The name of each client's epsilon in per_client.csv."""
_OUTSIDE = "training losses, evaluations, diagnostics and numbers of examples"


@dataclass(frozen=True, kw_only=True)
class RecordBudget:
    """The settings of config.record_privacy besides those of `RecordPrivacy`.

    Args:
        delta: The delta of each client's guarantee; below one over the largest number of examples.
        target_epsilon: The largest epsilon of a client, from which the noise of each client is found. None: the noise
            multiplier is given.
        accountant: "pld", "rdp", or "auto".
    """

    delta: OpenFraction
    target_epsilon: Positive | None = None
    accountant: Accountant = "auto"

    def __post_init__(self):
        check_constraints(constraints(RecordBudget), vars(self))


def build_mechanism(settings: Settings) -> RecordPrivacy | None:
    """Build the mechanism of config.record_privacy; None without one."""
    return _make_mechanism(settings[TABLE]) if TABLE in settings else None


def describe_noise(settings: Settings) -> dict[str, Any]:
    """The entry of resolved.json for settings with a resolved target: the noise multipliers, {} without one."""
    table = settings.get(TABLE)
    return {RECORD: list(table[MULTIPLIER])} if table and table["target_epsilon"] else {}


class Account(NamedTuple):
    """The accountant of a run with config.record_privacy.

    Args:
        settings: complete settings.
        local_update: the local training of the algorithm.
        federation: the data.
        rule: the sampling of clients.
    """

    settings: Settings
    local_update: LocalUpdate
    federation: Federation
    rule: Participation

    def resolve_noise(self, resolved: Settings) -> Settings:
        """Set the noise multipliers of the clients in settings with a target_epsilon; others are returned unchanged.

        Args:
            resolved: the record of resolved.json, whose noise multipliers are used again.

        Raises:
            InputError: Neither or both numbers are set, rounds are asynchronous, or the accountant cannot be used.
        """
        if TABLE not in self.settings:
            return self.settings
        table = self.settings[TABLE]
        if (table[MULTIPLIER] is None) == (table["target_epsilon"] is None):
            problem = "neither is set" if table[MULTIPLIER] is None else "both are set"
            raise InputError(
                f"config.{TABLE}.target_epsilon: {problem}, it and config.{TABLE}.{MULTIPLIER}, and one determines the "
                "other. Set exactly one of them."
            )
        if self.settings.get("asynchronous"):
            raise InputError(
                f"config.{TABLE}: not supported with config.asynchronous, where the number of rounds of each client is "
                "not known in advance. Remove one of the two."
            )
        if table[MULTIPLIER] is not None:
            self.epsilons(self.settings["rounds"])  # refused now rather than after the compilation
            return self.settings
        found = resolved.get(RECORD)
        if found is None:
            steps = self._count_steps(self.settings["rounds"]).max(axis=0)
            found = record_noise(_make_mechanism(table), table["target_epsilon"], *self._sizes, steps, *self._rest)
        return {**self.settings, TABLE: {**table, MULTIPLIER: tuple(found)}}

    def epsilons(self, rounds: int) -> np.ndarray:
        """The epsilon of each client after some rounds of a run with resolved noise, [seeds, clients]."""
        mechanism = _make_mechanism(self.settings[TABLE])
        steps = self._count_steps(rounds)
        return np.stack([record_epsilons(mechanism, *self._sizes, own, *self._rest) for own in steps])

    def describe(self) -> str:
        """Describe the guarantee of the whole run: the largest epsilon of a client, and what it does not cover."""
        table, counts, rounds = self.settings[TABLE], self._sizes[1], self.settings["rounds"]
        epsilons, noise = self.epsilons(rounds).max(axis=0), np.asarray(table[MULTIPLIER], float)
        worst = int(np.argmax(epsilons))
        multipliers = f"{noise.max():.4g}" if noise.ndim == 0 else f"{noise[counts > 0].min():.4g} to {noise.max():.4g}"
        return (
            f"epsilon at most {epsilons[worst]:.4g} at delta {table['delta']:g} after {rounds} rounds, to add or "
            f"remove one example (client {worst}, {counts[worst]} examples; all clients: per_client.csv)\n"
            f"noise multiplier {multipliers}, Poisson batches of {self._sizes[0]} expected examples\n"
            f"outside of the guarantee: {_OUTSIDE}"
        )

    @property
    def _sizes(self) -> tuple[int, np.ndarray]:
        """(The expected number of examples per step, the clients' numbers of examples)."""
        batch_size = self.local_update.max_batch_size or self.local_update.batch_size
        return batch_size, np.asarray(self.federation.data.train.count)

    @property
    def _rest(self) -> tuple[float, Accountant]:
        return self.settings[TABLE]["delta"], self.settings[TABLE]["accountant"]

    def _count_steps(self, rounds: int) -> np.ndarray:
        """The most steps of each client in the first rounds, [seeds, clients]."""
        keys = jax.vmap(make_key)(self.settings["seed"] + np.arange(self.settings["num_seeds"]))
        num_rounds = count_draws(self.rule, self.federation.num_clients, rounds, keys)
        return num_rounds * np.asarray(self.local_update.num_steps(self._sizes[1]))


def account_of(simulation: Simulation, settings: Settings) -> Account:
    """The accountant of a run of a simulation."""
    spec = simulation.executor.traced.spec
    return Account(settings, spec.algorithm.local_update, spec.federation, spec.participation)


def _make_mechanism(table: Settings) -> RecordPrivacy:
    return RecordPrivacy(**{field.name: table[field.name] for field in fields(RecordPrivacy)})
