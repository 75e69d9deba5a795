"""Tables as calls of factories: values that a signature accepts, and messages for others."""

import re
from collections.abc import Callable, Sequence
from typing import Literal, TypedDict, Unpack

import pytest

from fedjax_het.cli.configuration import calls
from fedjax_het.errors import InputError


class Training(TypedDict, total=False):
    learning_rate: float
    steps: int | None
    optimizer: Callable | None


def prox(
    mu: float = 0.1,
    *,
    form: Literal["squared", "plain"] = "squared",
    sizes: Sequence[int] = (1, 2),
    is_on: bool = True,
    rule: Callable = print,
    **training: Unpack[Training],
):
    if mu < 0:
        raise ValueError(f"mu: {mu} is negative")
    return {"mu": mu, "form": form, "sizes": sizes, "is_on": is_on, **training}


def shards(num_classes: int, classes_per_client: int):
    return num_classes, classes_per_client


REGISTRY = {"prox": prox, "shards": shards}


def resolve(name=None, **table):
    schema = calls.read_signature(calls.choose_factory({"name": name}, REGISTRY, "config.algorithm"))
    table = calls.check_table(table, schema, "config.algorithm")
    return calls.build_from_table({"name": name, **table}, REGISTRY, "config.algorithm")


def test_options_are_plain_arguments_and_keys_of_the_typed_dict():
    assert list(calls.read_signature(prox)) == ["mu", "form", "sizes", "is_on", "learning_rate", "steps"]
    assert not calls.read_signature(prox)["mu"].is_required
    assert calls.read_signature(shards, given=("num_classes",)).keys() == {"classes_per_client"}
    assert calls.read_signature(shards)["classes_per_client"].is_required


def test_a_table_calls_its_factory_with_converted_values():
    assert resolve(name="prox", mu=1, sizes=[3], steps=None) == {
        "mu": 1.0,
        "form": "squared",
        "sizes": (3,),
        "is_on": True,
        "steps": None,
    }
    assert isinstance(resolve(name="prox", mu=1)["mu"], float)
    assert calls.build_from_table({"name": "shards", "classes_per_client": 2}, REGISTRY, "x", num_classes=5) == (5, 2)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, r"config\.algorithm\.name is missing. Known: prox, shards"),
        ({"name": "prx"}, r"config\.algorithm\.name is unknown: 'prx'. Did you mean 'prox'\?"),
        (
            {"name": "prox", "learning_rat": 1},
            r"config\.algorithm\.learning_rat is unknown. Did you mean 'learning_rate'",
        ),
        ({"name": "prox", "mu": "0.1"}, r"config\.algorithm\.mu: expected float, got '0.1'"),
        ({"name": "prox", "mu": True}, r"config\.algorithm\.mu: expected float, got True"),
        ({"name": "prox", "steps": True}, r"config\.algorithm\.steps: expected int or None"),
        ({"name": "prox", "steps": 1.0}, r"config\.algorithm\.steps: expected int or None"),
        ({"name": "prox", "is_on": 1}, r"config\.algorithm\.is_on: expected true or false"),
        ({"name": "prox", "sizes": 3}, r"config\.algorithm\.sizes: expected a list of int"),
        ({"name": "prox", "sizes": (1, "2")}, r"config\.algorithm\.sizes: expected a list of int"),
        ({"name": "prox", "form": "round"}, r"config\.algorithm\.form: unknown option 'round'"),
        ({"name": "prox", "rule": "x"}, r"config\.algorithm\.rule is unknown"),
        ({"name": "prox", "mu": -1.0}, r"config\.algorithm\.mu: -1\.0 is negative"),
        ({"name": "shards", "num_classes": 3}, r"config\.algorithm\.classes_per_client is required"),
    ],
)
def test_values_that_a_signature_does_not_accept_are_refused_with_their_key(table, message):
    with pytest.raises(InputError, match=message):
        resolve(**table)


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("0.1", float, 0.1),
        ("1", float, 1.0),
        ("1e-3", float, 1e-3),
        ("7", int, 7),
        ("7", str, "7"),
        ("none", str, "none"),
        ("none", int | None, None),
        ("false", bool, False),
        ("True", bool, True),
        ("full", str | float, "full"),
        ("0.5", str | float, 0.5),
        ("6,16", Sequence[int], (6, 16)),
        ("64,", tuple[int, ...], (64,)),
        ("64", tuple[int, ...], (64,)),
        ("(6, 16)", tuple[int, int], (6, 16)),
        ("data/x=1", str, "data/x=1"),
        ("clip, nnm", Sequence[Literal["nnm", "clip"]], ("clip", "nnm")),
        ("nnm", Sequence[Literal["nnm", "clip"]], ("nnm",)),
    ],
)
def test_text_is_parsed_by_the_annotation(text, kind, value):
    read = calls.parse_text(text, kind)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("text", "kind"),
    [("x", float), ("2.5", int), ("1", bool), ("1,2,3", tuple[int, int]), ("1", tuple[int, int]), ("", int)],
)
def test_text_that_the_annotation_does_not_accept_is_refused(text, kind):
    with pytest.raises(TypeError, match="expected"):
        calls.parse_text(text, kind)


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ("seed: 0 is in use", r"data\."),
        ("step.size: must be positive", r"data\."),
        ("seed.npz: images of shape (3, 8, 8) have the channel axis first", "data: "),
        ("a/seed.npz does not exist", "data: "),
        ("too few of them", "data: "),
    ],
)
def test_a_factorys_error_is_reported_at_the_argument_that_begins_it(message, place):
    def divide(**_):
        raise ValueError(message)

    with pytest.raises(InputError, match=place + re.escape(message)):
        calls.call_factory(divide, {"seed": 0, "step": {"size": 1}, "path": "a/seed.npz"}, "data")
