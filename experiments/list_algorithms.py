"""The list of algorithms: a line for every algorithm, and all that is known of one, from docstrings."""

import argparse
import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import jax

from fedjax_het import data, models
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.engine import make_round
from fedjax_het.engine.execution.cost import bytes_per_client
from fedjax_het.errors import InputError, nearest

from . import PROGRAM
from .configuration import calls, settings

_SECTION = re.compile(r"^(Args|Returns|Raises|References):\n((?:[ ]{4}.*\n|\n)*)", re.MULTILINE)
_ENTRY = re.compile(r"^(\w+): ", re.MULTILINE)
_WIRE = "Wire: "


class Text(NamedTuple):
    """A docstring in parts."""

    title: str
    formula: list[str]
    wire: str  # what is sent and kept
    prose: list[str]  # the other paragraphs
    arguments: dict[str, str]  # what each argument means
    references: str


def own_options(factory: Callable[..., Algorithm]) -> dict[str, calls.Setting]:
    """The algorithm's own options; those of local training are every algorithm's."""
    training = set(Training.__annotations__)
    return {name: option for name, option in calls.read_signature(factory).items() if name not in training}


def traffic(factory: Callable[..., Algorithm], federation: data.Federation) -> int:
    """Bytes down and up, per client and round, for a small convolutional network with batch norm."""
    model = models.cnn(federation.num_classes, channels=(8, 16), hidden=(32,), norm="batch")
    round = make_round(factory(), model, federation.num_clients, prepare=federation.prepare)
    key = jax.random.key(0)
    state = jax.eval_shape(round.init, key, federation.data)
    return sum(bytes_per_client(jax.eval_shape(round.step_with_messages, state, federation.data, key)[2]))


def parse(function: Callable) -> Text:
    """Take the docstring of a function apart.

    The first line is the title, indented lines outside sections are the formula, a paragraph that begins with "Wire: "
    tells what is sent; Args and References are sections as Google's style guide has them.
    """
    title, _, rest = (inspect.getdoc(function) or "").partition("\n")
    sections = {name: textwrap.dedent(body) for name, body in _SECTION.findall(f"{rest}\n")}
    rest = _SECTION.sub("", f"{rest}\n")
    formula = [line for line in rest.splitlines() if line.startswith("    ")]
    plain = "\n".join(line for line in rest.splitlines() if not line.startswith("    "))
    prose = [" ".join(paragraph.split()) for paragraph in re.split(r"(?<=\.)\n|\n\n", plain) if paragraph.strip()]
    paragraphs = [" ".join(each.split()) for each in plain.split("\n\n") if each.strip()]
    wire = next((each for each in paragraphs if each.startswith(_WIRE)), "")
    prose = [each for each in prose if each not in wire]
    _, *entries = _ENTRY.split(sections.get("Args", ""))
    arguments = {name: " ".join(said.split()) for name, said in zip(entries[::2], entries[1::2], strict=True)}
    references = " ".join(sections.get("References", "").split())
    return Text(title, formula, wire.removeprefix(_WIRE), prose, arguments, references)


# ---- what is printed -------------------------------------------------------------------------------------------------
def show(name: str) -> None:
    """Print all that is known of an algorithm, or a line for each where the name is "".

    Raises:
        InputError: There is no algorithm of that name.
    """
    try:
        _show_one(name) if name else _show_all()
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads, `head` say, has enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _show_all() -> None:
    width = max(map(len, ALGORITHMS)) + 1
    for name, factory in ALGORITHMS.items():
        print(f"{name:<{width}} {parse(factory).title.partition(': ')[2]}")
    print()
    _wrap(f"`{PROGRAM} list NAME` shows one with its formula, options, traffic and references.")
    _wrap(f"Embedded configs, for --config=NAME: {', '.join(settings.embedded_configs())}.")


def _show_one(name: str) -> None:
    if name not in ALGORITHMS:
        raise InputError(f"there is no algorithm '{name}'. {nearest(name, ALGORITHMS)}")
    factory = ALGORITHMS[name]
    text, options = parse(factory), own_options(factory)
    print(f"{name}\n")
    _show([text.title])
    _show_formula(text.formula)
    _wrap("Wire: what is sent in a round, and what is kept")
    _show(_of_wire(name, text.wire))
    print("Options")
    _show_options(options, text.arguments)
    print()
    _wrap("Options of local training (defaults unless the text says otherwise)")
    training = inspect.signature(sgd).parameters
    shared = {name: calls.Setting(None, training[name].default) for name in Training.__annotations__}
    _show_options(shared, parse(sgd).arguments)
    print("\nNotes")
    _show(text.prose)
    print("Reference")
    _show([text.references])
    first = next(name for name, option in options.items() if option.table is None)
    flags = f"--config.algorithm.name={name} --config.algorithm.{first}={options[first].default}"
    _wrap(f"{flags} choose it and set one.")


def _of_wire(name: str, said: str) -> list[str]:
    if said.startswith("as FedAvg"):
        said += f" (FedAvg's: {parse(ALGORITHMS['fedavg']).wire.rstrip('.')}.)"
    federation = data.toy(num_clients=3, image=(12, 12, 1), valid_fraction=0.2)
    ratio = traffic(ALGORITHMS[name], federation) / traffic(ALGORITHMS["fedavg"], federation)
    measured = "per client and round, bytes down and up of a small convolutional network with batch norm"
    return [said[:1].upper() + said[1:], f"{ratio:.2f} times FedAvg's traffic: {measured}."]


def _show(paragraphs: Iterable[str]) -> None:
    for paragraph in paragraphs:
        _wrap(" ".join(paragraph.split()), "  ", "  ")
    print()


def _show_formula(lines: Iterable[str]) -> None:
    for line in lines:
        is_long = len(line) > shutil.get_terminal_size().columns
        _wrap(
            re.sub(r" {3,}", "   ", line.strip()) if is_long else line.rstrip(), "    " if is_long else "", "        "
        )
    print()


def _show_options(options: Mapping[str, calls.Setting], meanings: Mapping[str, str], inside: str = "") -> None:
    """Each with its default and what is said of it; those of a table stand below it, "aggregation.scope"."""
    for name, option in options.items():
        value = f"that of the run (config.{option.of_run})" if option.of_run else repr(option.default)
        _wrap(f"{inside}{name}" + (" = " + value if option.table is None else ""), "  ", "      ")
        _wrap(meanings.get(name, ""), "      ", "      ")
        if option.table is not None and option.function is not None:
            _show_options(option.table, parse(option.function).arguments, f"{inside}{name}.")


def _wrap(text: str, first: str = "", others: str = "") -> None:
    """Print it, in lines no longer than the terminal but for words that are."""
    room = shutil.get_terminal_size().columns
    for line in textwrap.wrap(
        text, room, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    ):
        print(line)


def main(argv: Sequence[str]) -> int:
    """The exit status: 0 = shown, 2 = there is no such algorithm."""
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} list", description="List the algorithms and the embedded configs.", allow_abbrev=False
    )
    parser.add_argument("name", nargs="?", default="", help="an algorithm, of which all is shown")
    try:
        show(parser.parse_args(argv).name)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
