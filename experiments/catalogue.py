"""What can be trained: every algorithm with its paper, its options and its traffic beside FedAvg's."""

import inspect
import re
import sys
from collections.abc import Callable

import jax
from rich.console import Console
from rich.table import Table

from experiments import config
from fedjax_het import data, models
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.engine import make_round
from fedjax_het.engine.cost import bytes_a_client

_REFERENCE = re.compile(r"^[A-Z][\w-]+(?:,? [A-Z][\w-]+)*(?: and [A-Z][\w-]+| et al\.?),", re.MULTILINE)


def description(factory: Callable[..., Algorithm]) -> tuple[str, str]:
    """(the first sentence of a recipe's file, the reference that ends it: at least its last two lines).

    A factory that speaks for itself, as `fedld_released` does, is described by its own first line.
    """
    text = inspect.getdoc(sys.modules[factory.__module__]) or ""
    title = text.split("\n")[0]
    if factory.__name__ != factory.__module__.rsplit(".", 1)[-1]:
        title = inspect.getdoc(factory).split("\n")[0]
    starts = [match.start() for match in _REFERENCE.finditer(text)]
    reference = text[starts[-1] :] if starts else " ".join(text.splitlines()[-2:])
    return title, " ".join(reference.split())


def own_options(factory: Callable[..., Algorithm]) -> str:
    """The recipe's own options with their defaults; those of local training are every recipe's."""
    training = set(Training.__annotations__)
    known = config.options(factory)
    return ", ".join(f"{name}={option.default!r}" for name, option in known.items() if name not in training)


def traffic(factory: Callable[..., Algorithm], federation: data.Federation) -> int:
    """Bytes down and up, a client a round, for a small convolutional network with batch norm."""
    model = models.cnn(federation.num_classes, channels=(8, 16), hidden=(32,), norm="batch")
    round = make_round(factory(), model, federation.num_clients, prepare=federation.prepare)
    key = jax.random.key(0)
    state = jax.eval_shape(round.init, key, federation.data)
    return sum(bytes_a_client(jax.eval_shape(round.explain, state, federation.data, key)[2]))


def show() -> None:
    """Print the catalogue."""
    federation = data.toy(num_clients=3, image=(12, 12, 1), valid_fraction=0.2)
    plain = traffic(ALGORITHMS["fedavg"], federation)
    table = Table("name", "what it does", "own options", "traffic", "paper", show_lines=True)
    for name, factory in ALGORITHMS.items():
        title, paper = description(factory)
        table.add_row(name, title, own_options(factory), f"{traffic(factory, federation) / plain:.2f}", paper)
    Console().print(table)
    defaults = {name: parameter.default for name, parameter in inspect.signature(sgd).parameters.items()}
    options = ", ".join(f"{name}={defaults[name]!r}" for name in Training.__annotations__ if name != "optimizer")
    print(f"Every algorithm takes the options of local training: {options}")
    print("(a recipe may have other defaults for them; its file says so).")
    print("traffic: bytes down and up, a client a round, relative to FedAvg's, for a small network with batch norm.")
