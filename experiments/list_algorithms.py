"""The catalogue of what can be trained: a line for every algorithm, and all that is known of one.

What is said of an algorithm is read from docstrings: that of its file, that of its factory, and for an option that
these explain by naming another function, that function's.
"""

import inspect
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import NamedTuple

import jax

from fedjax_het import data, models
from fedjax_het.algorithm import Algorithm
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.engine import make_round
from fedjax_het.engine.execution.cost import bytes_per_client
from fedjax_het.errors import InputError, nearest

from .configuration import calls

_REFERENCE = re.compile(r"^[A-Z][\w-]+(?:,? [A-Z][\w-]+)*(?: and [A-Z][\w-]+| et al\.?),", re.MULTILINE)
_MENTIONED = re.compile(r"`(?:\w+\.)*(\w+)[`(]")
_REFERRAL = re.compile(r"(?:[,;] )?see `[\w.]+`[.;]? ?")
_END = re.compile(r"\s{3}|(?<=\.)\s(?=[A-Z][\w']*(?: \w+)?: )")  # of what is said of an option
_WIRE = "Wire"


class Text(NamedTuple):
    """A docstring in parts: "Wire" and options by their names, each with what is said of it."""

    title: str
    formula: list[str]
    meanings: dict[str, str]
    prose: list[str]  # the other paragraphs


def description(factory: Callable[..., Algorithm]) -> tuple[str, str]:
    """(the first sentence of a recipe's file, the reference that ends it: at least its last two lines).

    A factory that speaks for itself, as `fedld_released` does, is described by its own first line.
    """
    text = inspect.getdoc(sys.modules[factory.__module__]) or ""
    title = text.split("\n")[0]
    if _speaks_for_itself(factory):
        title = inspect.getdoc(factory).split("\n")[0]
    return title, " ".join(text[_start_of_reference(text) :].split())


def _speaks_for_itself(factory: Callable[..., Algorithm]) -> bool:
    return factory.__name__ != factory.__module__.rsplit(".", 1)[-1]


def _start_of_reference(text: str) -> int:
    starts = [match.start() for match in _REFERENCE.finditer(text)]
    return starts[-1] if starts else len(text) - len("\n".join(text.splitlines()[-2:]))


def _module(name: str) -> ModuleType:
    return sys.modules[ALGORITHMS[name].__module__]


def _body(module: ModuleType) -> str:
    """What a recipe's file says of it, without the reference."""
    text = inspect.getdoc(module) or ""
    return text[: _start_of_reference(text)]


def own_options(factory: Callable[..., Algorithm]) -> dict[str, calls.Setting]:
    """The recipe's own options; those of local training are every recipe's."""
    training = set(Training.__annotations__)
    return {name: option for name, option in calls.read_signature(factory).items() if name not in training}


def traffic(factory: Callable[..., Algorithm], federation: data.Federation) -> int:
    """Bytes down and up, a client a round, for a small convolutional network with batch norm."""
    model = models.cnn(federation.num_classes, channels=(8, 16), hidden=(32,), norm="batch")
    round = make_round(factory(), model, federation.num_clients, prepare=federation.prepare)
    key = jax.random.key(0)
    state = jax.eval_shape(round.init, key, federation.data)
    return sum(bytes_per_client(jax.eval_shape(round.step_with_messages, state, federation.data, key)[2]))


# ---- docstrings ------------------------------------------------------------------------------------------------------
def parse(text: str, names: Iterable[str]) -> Text:
    """Take a docstring apart.

    Args:
        text: the docstring. Its first line is the title, indented lines are the formula. An entry "lam: the weight"
            begins a line, or follows three spaces or a sentence; "eta: lam, 0.1" says that eta is the formula's name.
        names: the options that entries may explain.
    """
    title, _, rest = text.partition("\n")
    formula = [line for line in rest.splitlines() if line.startswith("    ")]
    plain = "\n".join(line for line in rest.splitlines() if not line.startswith("    ")).strip()
    known = "|".join(map(re.escape, names)) or "$^"
    start = re.compile(
        rf'(?:^|\s{{3}}|(?<=[.;"])\s)(?:(?P<names>(?:{_WIRE}|{known})(?:, (?:{known}))*): '
        rf"|(?P<alias>\w+): (?P<name>{known})(?=[,.; ]))"
    )
    meanings, prose = {}, []
    for paragraph in re.split(r"(?<=\.)\n+|\n\n", plain):
        line = " ".join(paragraph.split("\n"))
        found = list(start.finditer(line))
        prose += [line[: found[0].start()] if found else line]
        ends = [each.start() for each in found[1:]] + [len(line)]
        for match, end in zip(found, ends, strict=False):  # one more end than there are entries where there is none
            meaning, *more = _END.split(line[match.end() : end].strip().rstrip(";"), maxsplit=1)
            prose += more
            if match["alias"]:
                meanings.setdefault(match["name"], match["alias"] + meaning)
            for name in (match["names"] or "").split(", "):
                meanings.setdefault(name, meaning)
    meanings.pop("", None)
    return Text(title, formula, meanings, [each.strip() for each in prose if each.strip()])


def meaning(option: str, texts: Iterable[str], names: Iterable[str]) -> str:
    """What docstrings say of an option, and where they name a function instead, what its docstring says.

    Args:
        option: its name.
        texts: the docstrings, the first that speaks of it decides.
        names: all options that they may speak of.
    """
    found, mentioned = "", []
    for text in texts:
        found = parse(text, [option, *names]).meanings.get(option, "")
        mentioned += [function for name in _MENTIONED.findall(found or text) for function in _functions(name)]
        if found:
            break
    if found and not _REFERRAL.search(found):
        return found
    for function in dict.fromkeys(mentioned):
        parameters = inspect.signature(function).parameters
        if option in parameters and (inner := meaning(option, [inspect.getdoc(function) or ""], parameters)):
            before, after = _REFERRAL.split(found, maxsplit=1) if found else ("", "")
            return " ".join(filter(None, [f"{before}:" if before else "", inner, after[:1].upper() + after[1:]]))
    return found


def meaning_of(option: str, factory: Callable[..., Algorithm]) -> str:
    """What is said of a recipe's own option by its file, its factory and the file's first factory, else by FedAvg's."""
    module = sys.modules[factory.__module__]
    first = getattr(module, module.__name__.rsplit(".", 1)[-1])
    texts = [_body(module), *(inspect.getdoc(each) or "" for each in (factory, first))]
    names = {name for each in (factory, first) for name in own_options(each)}
    return meaning(option, texts, names) or meaning(option, [_body(_module("fedavg"))], names)


def _functions(name: str) -> Iterator[Callable]:
    """Functions of the package by this name."""
    for module in [module for key, module in sys.modules.items() if key.startswith("fedjax_het.")]:
        if inspect.isfunction(function := getattr(module, name, None)):
            yield function


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
        title, _ = description(factory)
        print(f"{name:<{width}} {title if _speaks_for_itself(factory) else title.partition(': ')[2]}")
    print("\n--list NAME shows one with its formula, options, traffic and references.")


def _show_one(name: str) -> None:
    if name not in ALGORITHMS:
        raise InputError(f"--list: there is no algorithm '{name}'. {nearest(name, ALGORITHMS)}")
    factory = ALGORITHMS[name]
    title, reference = description(factory)
    options = own_options(factory)
    parts = parse(_body(_module(name)), options)
    print(f"{name}\n")
    if title != parts.title:
        _show([*(inspect.getdoc(factory) or "").split("\n\n"), parts.title])
    else:
        _show([title])
    _show_formula(parts.formula)
    _wrap("Wire: what is sent in a round, and what is kept")
    _show(_of_wire(name, parts))
    print("Options")
    for key, option in options.items():
        _show_option(key, option.default, meaning_of(key, factory), option.of_run)
    print()
    _wrap("Options of local training (defaults unless the text says otherwise)")
    training = inspect.signature(sgd).parameters
    for option in Training.__annotations__:
        _show_option(option, training[option].default, meaning(option, [inspect.getdoc(sgd) or ""], training))
    print("\nNotes")
    _show(parts.prose)
    print("Reference")
    _show([reference])
    first = next(iter(options))
    flags = f"--config.algorithm.name={name} --config.algorithm.{first}={options[first].default}"
    _wrap(f"{flags} choose it and set one.")


def _of_wire(name: str, parts: Text) -> list[str]:
    said = parts.meanings.get(_WIRE, "")
    if said.startswith("as FedAvg"):
        said += f" (FedAvg's: {parse(_body(_module('fedavg')), ['server_learning_rate']).meanings[_WIRE].rstrip('.')}.)"
    federation = data.toy(num_clients=3, image=(12, 12, 1), valid_fraction=0.2)
    ratio = traffic(ALGORITHMS[name], federation) / traffic(ALGORITHMS["fedavg"], federation)
    measured = "a client a round, bytes down and up of a small convolutional network with batch norm"
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


def _show_option(name: str, default: object, said: str, of_run: str | None = None) -> None:
    value = f"that of the run (config.{of_run})" if of_run else repr(default)
    _wrap(f"{name} = {value}", "  ", "      ")
    _wrap(said, "      ", "      ")


def _wrap(text: str, first: str = "", others: str = "") -> None:
    """Print it, in lines no longer than the terminal but for words that are."""
    room = shutil.get_terminal_size().columns
    for line in textwrap.wrap(
        text, room, initial_indent=first, subsequent_indent=others, break_long_words=False, break_on_hyphens=False
    ):
        print(line)
