"""Trials of a method: values drawn from the space that its recipe declares, and their rungs of successive halving."""

import zlib
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.errors import InputError

from ..configuration.calls import Setting, read_signature

Overrides = Mapping[str, str]


class Trial(NamedTuple):
    """One choice of values for a method."""

    method: str
    values: tuple[tuple[str, str], ...]  # (key, text) of what was drawn

    @property
    def text(self) -> str:
        return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.values) or "the defaults"


def search_space(method: str) -> dict[str, Setting]:
    """The arguments of a method that its recipe declares a space for."""
    return {name: option for name, option in read_signature(ALGORITHMS[method]).items() if option.search}


def draw_trials(method: str, count: int, seed: int, given: Overrides) -> list[Trial]:
    """Draw the settings of a method's trials. The first has what the config and the recipe say.

    What trial k draws for an argument is a function of (seed, argument, k), whatever the method, so that methods are
    tried at the same learning rates, and one that is another under a second name has the same trials.

    Args:
        method: the name of the algorithm.
        count: the number of trials.
        seed: of the draws.
        given: settings that the command line fixes for all runs; they are not drawn.
    """
    space = {name: option for name, option in search_space(method).items() if f"algorithm.{name}" not in given}
    drawn = (tuple((f"algorithm.{n}", _draw(o, seed, n, k)) for n, o in space.items()) for k in range(1, count))
    return [Trial(method, values) for values in ((), *drawn)]


def _draw(option: Setting, seed: int, name: str, trial: int) -> str:
    assert option.search
    share = np.random.default_rng([seed, zlib.crc32(name.encode()), trial]).random()
    return f"{option.search.draw(share):.3g}"


class Rung(NamedTuple):
    """A stage of successive halving."""

    rounds: int
    trials: int  # of each method; those that were best in the rung before


def plan_rungs(rounds: int, trials: int, factor: int) -> list[Rung]:
    """Plan the rungs: each trains a share of 1/factor of the trials before, for factor times as many rounds.

    Args:
        rounds: of the last rung.
        trials: of the first.
        factor: 0 trains all trials for all rounds; otherwise so that the last rung has at least `factor` trials.

    Raises:
        InputError: The first rung would have no round.
    """
    count = 0
    while factor and trials // factor ** (count + 1) >= factor:
        count += 1
    if rounds < factor**count:
        raise InputError(f"--halving={factor}: {rounds} rounds are too few for {count + 1} rungs. Leave it out.")
    return [Rung(rounds // factor ** (count - i), trials // factor**i) for i in range(count + 1)]


def count_rounds(rungs: Sequence[Rung]) -> int:
    """The rounds of all trials of a method together."""
    return sum(rung.rounds * rung.trials for rung in rungs)


def describe_space(method: str) -> str:
    """Describe the space of a method, "learning_rate LogUniform(0.001, 1)"."""

    def describe(search: Any) -> str:
        return f"{type(search).__name__}({search.low:g}, {search.high:g})"

    return ", ".join(f"{name} {describe(option.search)}" for name, option in search_space(method).items())
