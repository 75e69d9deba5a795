"""Every documented value of every option: names of a Literal, True and False, None, and presets."""

import inspect
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from fedjax_het import asynchronous, participation, timing, tree
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.annotations import find_mark
from fedjax_het.data import POISONINGS
from fedjax_het.engine import Sweep, vmapped
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.execution.trace import trace_round
from fedjax_het.server.aggregators import AGGREGATORS
from fedjax_het.uplink import STAGES
from fedjax_het.validation import KeywordsOf
from tests.harness import algorithm, federation, federation_of, model, network_of

REGISTRIES = {
    "uplink": STAGES,
    "aggregator": AGGREGATORS,
    "participation": participation.PARTICIPATIONS,
    "timing": timing.TIMINGS,
    "asynchronous": asynchronous.ASYNCHRONOUS,
    "poison": POISONINGS,
}


def documented_values(kind: typing.Any) -> Iterator[typing.Any]:
    """The values that an annotation lists."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if table := find_mark(kind, KeywordsOf):
        yield from (
            BESIDE.get((name, value), {}) | {name: value}
            for name, value in option_values(table.function)
            if name not in table.given
        )
    elif origin is typing.Literal:
        yield from inner
    elif origin in (tuple, list, Sequence):
        yield from ((value,) for value in documented_values(inner[0]))
    elif kind is bool:
        yield from (True, False)
    elif kind is type(None):
        yield None
    elif origin is not Callable:
        for part in inner:
            yield from documented_values(part)


def option_values(factory: typing.Any) -> Iterator[tuple[str, typing.Any]]:
    """(name of an option, one of its documented values), with the keys of `**rest: Unpack[SomeTypedDict]`."""
    kinds = typing.get_type_hints(inspect.unwrap(factory), include_extras=True)
    for name in inspect.signature(factory).parameters:
        kind = kinds.get(name)
        if typing.get_origin(kind) is typing.Unpack:
            kinds_of_keys = typing.get_type_hints(typing.get_args(kind)[0], include_extras=True)
            yield from ((key, value) for key, inner in kinds_of_keys.items() for value in documented_values(inner))
        else:
            yield from ((name, value) for value in documented_values(kind))


OPTIONS = {
    "clip": {"norm": 1.0},
    "majority_vote": {"step": 0.1},
    "gaussian_mechanism": {"norm": 1.0, "noise_multiplier": 1.0, "buffers": "in_vector"},
    "matrix_mechanism": {"norm": 1.0, "noise_multiplier": 1.0, "buffers": "in_vector", "rounds": 2, "separation": 1},
    "poisson": {"probability": 0.5},
    "cyclic": {"period": 2},
    "waiting": {"cohort_size": 2, "separation": 2},
    "trace": {"path": "trace.csv"},
    "from_file": {"path": "speeds.csv"},
    **{name: {"cohort_size": 2} for name in ("active_fl", "divfl", "fedcor", "oort")},
    **{name: {"cohort_size": 2, "candidates": 4} for name in ("pow_d", "rpow_d")},
    "fedbuff": {"concurrency": 3, "buffer_size": 2},
    "fedasync": {"concurrency": 3},
} | {name: {"fraction": 0.4} for name in [*STAGES, *POISONINGS] if name.startswith("attack_") or name in POISONINGS}
"""What a factory needs besides the option that is tested."""
BESIDE: dict[tuple[str, typing.Any], dict[str, typing.Any]] = {
    ("late", "drop"): {"deadline": 2.5},
    ("late", "partial"): {"deadline": 2.5},
    ("clip_norm", "median"): {"before": ("clip",)},
    ("bounded_fraction", True): {"target_quantile": 0.5, "count_noise": 1.0},
    ("count_noise", None): {"target_quantile": 0.5, "noise_multiplier": 0.1},
    ("before", ("bucketing",)): {"num_attackers": 0},
    ("projection", "cosine"): {"correction": "whole"},
}
"""What a value has no effect or no meaning without."""


def cases() -> Iterator[typing.Any]:
    """(table, name, option, value); a factory's defaults are one case, of no option."""
    for where, registry in REGISTRIES.items():
        for name, factory in registry.items():
            yield pytest.param(where, name, "", None, id=f"{where}-{name}")
            for option, value in option_values(factory):
                if value != getattr(inspect.signature(factory).parameters.get(option), "default", None):
                    yield pytest.param(where, name, option, value, id=f"{where}-{name}-{option}-{value}")


def make_spec(where: str, name: str, options: Mapping[str, typing.Any]) -> RunSpec:
    """A run of FedAvg, with a table of its config filled in."""
    built, clients = REGISTRIES[where][name](**options), federation(test_fraction=0.2)
    chosen = algorithm("fedavg", weighting="uniform")
    if where == "uplink":
        chosen = replace(algorithm("choco") if options.get("feedback") == "estimates" else chosen, uplink=(built,))
    chosen = replace(chosen, aggregator=built) if where == "aggregator" else chosen
    drawn = built if where == "participation" else participation.uniform(1 if where == "asynchronous" else 5)
    clock = {"timing": built, "asynchronous": timing.log_normal()}.get(where)
    clients = built(clients) if where == "poison" else clients
    spec = RunSpec(Sweep(lambda: chosen), model(), clients, drawn, rounds=2, block=2, timing=clock)
    return spec.with_events(built if where == "asynchronous" else None)


def write_tables(folder: Path) -> None:
    (folder / "trace.csv").write_text("\n".join(["client,start,end", *(f"{i},0,9" for i in range(5))]))
    (folder / "speeds.csv").write_text(
        "\n".join(["client,step_seconds,message_seconds", *(f"{i},1,0" for i in range(5))])
    )


@pytest.mark.every_case
@pytest.mark.extended
@pytest.mark.parametrize(("where", "name", "option", "value"), list(cases()))
@pytest.mark.parametrize("is_run", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["traced", "run"])
def test_every_documented_value_of_an_option_makes_a_round(tmp_path, monkeypatch, where, name, option, value, is_run):
    monkeypatch.chdir(tmp_path)
    write_tables(tmp_path)
    chosen = {option: value} if option else {}
    spec = make_spec(where, name, OPTIONS.get(name, {}) | BESIDE.get((option, value), {}) | chosen)
    round, key, data = spec.round(vmapped), spec.keys()[0], spec.federation.data
    events = jax.tree.map(lambda x: x[0], spec.schedule)
    if not is_run:
        state = jax.eval_shape(round.init, key, data)
        after = jax.eval_shape(round.step, state, data, key, events)[0]
        assert tree.describe_leaves(after) == tree.describe_leaves(state)
        return
    start = round.init(key, data)
    after, metrics = jax.jit(round.step)(start, data, key, events)
    assert tree.is_finite(after) and not metrics.is_rejected
    assert tree.norm(tree.subtract(after.server.shared, start.server.shared)) > 0


def algorithm_cases() -> Iterator[typing.Any]:
    """(name, option, value) of the options of each algorithm; those of its local training for FedAvg alone."""
    shared = {option for option, _ in option_values(ALGORITHMS["fedavg"])}
    for name, factory in ALGORITHMS.items():
        for option, value in option_values(factory):
            if name == "fedavg" or option not in shared:
                yield pytest.param(name, option, value, id=f"{name}-{option}-{value}")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "option", "value"), list(algorithm_cases()))
def test_every_documented_value_of_an_algorithm_makes_a_round(name, option, value):
    sweep = Sweep(lambda: algorithm(name, **{option: value}))
    spec = RunSpec(sweep, network_of(name), federation_of(name), participation.full(), 2, 2)
    trace_round(spec, vmapped)
