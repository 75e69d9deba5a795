"""Trials of a method: values drawn from the space that its recipe declares, and their rungs of successive halving."""

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli.configuration.calls import Setting, read_signature
from fedjax_het.errors import InputError

Overrides = Mapping[str, str]


class Trial(NamedTuple):
    """One choice of values for a method."""

    method: str
    values: tuple[tuple[str, str], ...]  # (key, text) of what was drawn
    defaults: tuple[tuple[str, str], ...] = ()  # where nothing was drawn: what the config and the recipe say

    @property
    def text(self) -> str:
        shown = ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in self.values or self.defaults)
        return shown if self.values else f"the defaults ({shown})" if shown else "the defaults"


def search_space(method: str) -> dict[str, Setting]:
    """The arguments of a method that its recipe declares a space for."""
    return {name: option for name, option in read_signature(ALGORITHMS[method]).items() if option.search}


def draw_trials(method: str, count: int, seed: int, given: Overrides, algorithm: Mapping[str, Any]) -> list[Trial]:
    """Draw the settings of a method's trials. The first has what the config and the recipe say.

    The others are a Latin hypercube: the range of each argument is divided into count - 1 intervals of equal
    probability, and every interval has one trial. The draws for an argument are a function of (seed, argument, count),
    whatever the method, so that methods are tried at the same learning rates, and one that is another under a second
    name has the same trials.

    Args:
        method: The name of the algorithm.
        count: The number of trials.
        seed: The seed of the draws.
        given: Settings that the command line fixes for all runs; they are not drawn.
        algorithm: The complete table config.algorithm of the method, with the values of the first trial.

    References:
        McKay, Beckman, Conover, "A comparison of three methods for selecting values of input variables in the analysis
        of output from a computer code", 1979.
    """
    space = {name: option for name, option in search_space(method).items() if f"algorithm.{name}" not in given}
    columns = [_draw(option, seed, name, count - 1) for name, option in space.items()]
    keys = [f"algorithm.{name}" for name in space]
    values = [f"{value:.3g}" if isinstance(value, float) else str(value) for value in map(algorithm.get, space)]
    first = Trial(method, (), tuple(zip(keys, values, strict=True)))
    return [first, *(Trial(method, tuple(zip(keys, row, strict=True))) for row in zip(*columns, strict=True))]


def _draw(option: Setting, seed: int, name: str, count: int) -> list[str]:
    assert option.search
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    shares = (rng.permutation(count) + rng.random(count)) / max(count, 1)
    return [f"{option.search.draw(share):.3g}" for share in shares]


def find_values_at_ends(selected: Trial, tried: Sequence[Trial]) -> Iterator[str]:
    """Describe each value of the selected trial that is the smallest or the largest of at least three that were tried.

    Args:
        selected: The selected trial.
        tried: All trials of its method.
    """
    space = search_space(selected.method)
    for key, text in selected.values or selected.defaults:
        name = key.removeprefix("algorithm.")
        texts = [dict(trial.values or trial.defaults)[key] for trial in tried]
        values = sorted({float(value) for value in texts if _is_number(value)})
        if len(values) < 3 or not _is_number(text) or float(text) not in (values[0], values[-1]):
            continue
        end, direction = ("smallest", "below") if float(text) == values[0] else ("largest", "above")
        yield (
            f"the selected {name}={text} is the {end} of {len(values)} values tried, from "
            f"{_describe_search(space[name])}. A better value may lie {direction}."
        )


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


class Rung(NamedTuple):
    """A stage of successive halving."""

    rounds: int
    trials: int  # of each method; those that were best in the rung before


def plan_rungs(rounds: int, trials: int, factor: int) -> list[Rung]:
    """Plan the rungs: each trains a share of 1/factor of the trials before, for factor times as many rounds.

    Args:
        rounds: the rounds of the last rung.
        trials: the trials of the first rung.
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
    return ", ".join(f"{name} {_describe_search(option)}" for name, option in search_space(method).items())


def _describe_search(option: Setting) -> str:
    search: Any = option.search
    return f"{type(search).__name__}({search.low:g}, {search.high:g})"
