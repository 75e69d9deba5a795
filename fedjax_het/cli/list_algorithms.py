"""The list of algorithms: one line per algorithm, or the whole documentation of one, read from docstrings."""

import argparse
import inspect
import math
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence

import jax
import numpy as np

from fedjax_het import data, models
from fedjax_het._internal.docstrings import parse_docstring
from fedjax_het._internal.keys import make_key
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS, FAMILIES
from fedjax_het.cli.configuration import calls, config_files
from fedjax_het.cli.configuration.command_line import with_exit_status
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.engine import make_round
from fedjax_het.engine.execution.cost import traffic_per_client
from fedjax_het.errors import InputError, nearest

_CLIP = {"features": 32, "layers": 2, "heads": 2, "patch": 4, "text_features": 32, "text_layers": 2, "text_heads": 2}
_PUBLIC = 1000  # examples


def measure_traffic(factory: Callable[..., Algorithm], federation: data.Federation, network: str = "batch") -> int:
    """Return the bytes down and up, per client and round, for a small CLIP ("clip"), or a CNN with or without norm."""
    classes = federation.num_classes
    if network == "clip":
        prompts = [[1, 2, 3, number + 4, 5, 99] for number in range(classes)]
        model = models.clip(classes, prompts=prompts, texts="tower", text_vocabulary=100, **_CLIP)
    else:
        model = models.cnn(classes, channels=(8, 16), hidden=(32,), norm="batch" if network == "batch" else "none")
    algorithm, num_clients = factory(), federation.num_clients
    if algorithm.reads_public:
        shape = federation.examples.inputs.shape[1:]
        federation = federation.with_public(np.zeros((_PUBLIC, *shape), federation.examples.inputs.dtype))
    round = make_round(algorithm, model, num_clients, prepare=federation.prepare)
    key = make_key(0)
    state = jax.eval_shape(round.init, key, federation.data)
    messages = jax.eval_shape(round.step_with_messages, state, federation.data, key)[2]
    down, up = traffic_per_client(algorithm, round.problem, federation.data, num_clients, messages)
    return down + math.ceil(up / 8)


# ---- printing -------------------------------------------------------------------------------------------------------
def show(name: str) -> None:
    """Print the documentation of an algorithm, or one line per algorithm if the name is empty.

    Raises:
        InputError: There is no algorithm of that name.
    """
    try:
        _print_one(name) if name else _print_all()
        sys.stdout.flush()
    except BrokenPipeError:  # the reader, such as `head`, has closed the pipe
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_all() -> None:
    width = max(map(len, ALGORITHMS)) + 1
    for name, factory in ALGORITHMS.items():
        print(f"{name:<{width}} {parse_docstring(factory).title.partition(': ')[2]}")
    print()
    _print_wrapped("`fedjax-het list NAME` shows the formula, options, traffic and references of one.")
    _print_wrapped(f"Embedded configs, for --config: {', '.join(config_files.embedded_configs())}.")


def _print_one(name: str) -> None:
    if name not in ALGORITHMS:
        raise InputError(f"there is no algorithm '{name}'. {nearest(name, ALGORITHMS)}")
    factory = ALGORITHMS[name]
    text, signature = parse_docstring(factory), calls.read_signature(factory)
    options = {name: option for name, option in signature.items() if name not in Training.__annotations__}
    print(f"{name}\n")
    _print_paragraphs([text.title])
    _print_formula(text.formula)
    _print_wrapped("Communication per round, and state between rounds")
    _print_paragraphs(_describe_communication(name, text.communication))
    print("Options")
    _print_options(options, text.arguments)
    print()
    _print_wrapped("Options of local training (with these defaults, unless the notes say otherwise)")
    training = inspect.signature(sgd).parameters
    shared = {name: calls.Setting(None, training[name].default) for name in Training.__annotations__}
    _print_options(shared, parse_docstring(sgd).arguments)
    print("\nNotes")
    _print_paragraphs(text.prose)
    print("Reference")
    _print_paragraphs([text.references])
    first = next(name for name, option in options.items() if option.table is None)
    flags = f"--config.algorithm.name={name} --config.algorithm.{first}={options[first].default}"
    _print_wrapped(f"{flags} selects it and sets an option.")


def _describe_communication(name: str, text: str) -> list[str]:
    if text.startswith("same as FedAvg"):
        text += f" (FedAvg: {parse_docstring(ALGORITHMS['fedavg']).communication.partition('. ')[0]}.)"
    federation = data.toy(num_clients=3, image=(12, 12, 1), valid_fraction=0.2)
    families = {"Prompts of CLIP": "clip", "Different capacities": "none"}
    network = next((network for family, network in families.items() if ALGORITHMS[name] in FAMILIES[family]), "batch")
    own, usual = (measure_traffic(ALGORITHMS[other], federation, network) for other in (name, "fedavg"))
    kinds = {"clip": "CLIP", "none": "convolutional network", "batch": "convolutional network with batch norm"}
    ratio, kind = own / usual, kinds[network]
    unit = f"per client and round, bytes down and up of a small {kind}"
    return [text[:1].upper() + text[1:], f"{ratio:.2f} times FedAvg's traffic: {unit}."]


def _print_paragraphs(paragraphs: Iterable[str]) -> None:
    for paragraph in paragraphs:
        _print_wrapped(" ".join(paragraph.split()), "  ", "  ")
    print()


def _print_formula(lines: Iterable[str]) -> None:
    for line in lines:
        is_long = len(line) > shutil.get_terminal_size().columns
        _print_wrapped(
            re.sub(r" {3,}", "   ", line.strip()) if is_long else line.rstrip(), "    " if is_long else "", "        "
        )
    print()


def _print_options(options: Mapping[str, calls.Setting], descriptions: Mapping[str, str], prefix: str = "") -> None:
    """Print each option with its default and description; those of a nested table follow it, "aggregation.scope"."""
    for name, option in options.items():
        value = f"as in the run (config.{option.run_setting})" if option.run_setting else repr(option.default)
        has_value = option.table is None and option.default is not inspect.Parameter.empty
        _print_wrapped(f"{prefix}{name}" + (" = " + value if has_value else ""), "  ", "      ")
        _print_wrapped(descriptions.get(name, ""), "      ", "      ")
        if option.table is not None and option.function is not None:
            _print_options(option.table, parse_docstring(option.function).arguments, f"{prefix}{name}.")


def _print_wrapped(text: str, first: str = "", others: str = "") -> None:
    """Print a text in lines no longer than the terminal, except for longer words."""
    width = shutil.get_terminal_size().columns
    for line in textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    ):
        print(line)


@with_exit_status()
def main(argv: Sequence[str]) -> int:
    """Run the command; return the exit status: 0, or 2 if there is no such algorithm."""
    parser = argparse.ArgumentParser(
        prog="fedjax-het list", description="List the algorithms and the embedded configs.", allow_abbrev=False
    )
    parser.add_argument("name", nargs="?", default="", help="an algorithm whose whole documentation is shown")
    show(parser.parse_args(argv).name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
