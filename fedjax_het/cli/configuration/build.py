"""Construction of the data, model, algorithm and compiled simulation that settings describe."""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from fedjax_het import engine, participation
from fedjax_het._internal.cache_folder import cache_folder
from fedjax_het._internal.target_platform import target_platform
from fedjax_het.algorithm import Algorithm
from fedjax_het.cli.configuration import build_data, calls, privacy, record_privacy
from fedjax_het.cli.configuration.settings import OPTIONAL_TABLES, SCHEDULE, TABLES, UPLINK
from fedjax_het.cli.distributed.collectives import SINGLE, Processes
from fedjax_het.cli.distributed.layouts import read_layout
from fedjax_het.cli.runs.run_directory import describe_differences
from fedjax_het.cli.runs.setting_text import parse_names, parse_size
from fedjax_het.client.objectives import with_task_loss
from fedjax_het.data import Dataset, Federation
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import METRICS, OffloadPolicy, Sweep
from fedjax_het.errors import InputError
from fedjax_het.labels import KindName, find_kind
from fedjax_het.models import computed_in, ordinal
from fedjax_het.models._conv_impl import select_conv_impl
from fedjax_het.types import Array, Model


class RunParts(NamedTuple):
    """The objects that the tables of a config describe."""

    dataset: Dataset
    federation: Federation
    model: Model
    layout: Any
    offload: OffloadPolicy  # of client states and examples
    participation: Any
    timing: Any  # of clients on the virtual clock; None without one
    asynchronous: Any  # the rule of asynchronous rounds; None waits for every client
    conv: str | None  # how convolutions are computed, where the model has any; "auto" if it is to be timed
    resolved: Mapping[str, Any]  # values of an earlier start that are used again; {} if there are none for the devices


def build_parts(
    settings: Mapping[str, Any], resolved: Mapping[str, Any] = MappingProxyType({}), processes: Processes = SINGLE
) -> RunParts:
    """Build the objects that settings describe.

    Args:
        settings: complete settings.
        resolved: the record of resolved.json, in which an earlier start of the run wrote what "auto" was resolved to.
        processes: the processes that train together.

    Raises:
        InputError: A factory refuses a value, or the cohort is larger than the number of clients.
    """
    layout = read_layout(settings["layout"], processes)
    is_auto = layout == engine.simulation.AUTO
    if resolved.get("devices") != _describe_devices() or not (is_auto or resolved["layout"] == str(layout)):
        resolved = {}
    layout = read_layout(resolved["layout"], processes) if is_auto and resolved else layout
    dataset, federation = build_data.build_federation(settings["data"])
    if poison := _build_optional(settings, "poison"):
        federation = calls.call_factory(poison, {}, "config.poison", federation=federation)
    participation = _build_participation(settings, federation.num_clients)
    timing, asynchronous = (_build_optional(settings, where) for where in ("timing", "asynchronous"))
    table = dict(settings["model"])
    if table.get("vocabulary", "") is None and table.get("pretrained") is None:
        table["vocabulary"] = federation.vocabulary
    if table.get("conv") == "auto":
        is_timed = layout == engine.simulation.AUTO and target_platform() != "cpu"
        table["conv"] = resolved.get("conv") or _choose_conv_impl(settings["precision"], processes, is_timed=is_timed)
    model = build_model(table, federation.num_classes, find_kind(federation.examples.labels).name)
    model = computed_in(settings["precision"])(model)
    auto, requested = engine.simulation.AUTO, [(name, settings[name]) for name in OffloadPolicy._fields]
    offload = OffloadPolicy(*(resolved.get(name, auto) if value == auto else value for name, value in requested))
    rules = participation, timing, asynchronous
    return RunParts(dataset, federation, model, layout, offload, *rules, table.get("conv"), resolved)


def build_model(table: Mapping[str, Any], num_classes: int, kind: KindName = "classes") -> Model:
    """Build the network of a checked table config.model for a kind of labels, with its adapter."""
    own = {key: value for key, value in table.items() if key not in ("adapter", *TABLES["model"].fixed)}
    adapt = calls.build_from_table(table["adapter"], TABLES["model.adapter"].registry, "config.model.adapter")
    model = calls.build_from_table(own, TABLES["model"].registry, "config.model", num_classes=num_classes)
    return adapt(ordinal(model) if kind == "ranks" else model)


def build_algorithm(settings: Mapping[str, Any], **hyper_parameters: float | Array) -> Algorithm:
    """Build the algorithm of complete settings.

    Args:
        settings: complete settings.
        hyper_parameters: values that take the place of those in the settings; they may be traced.

    Raises:
        InputError: The algorithm's factory refuses a value.
    """
    table: dict[str, Any] = {**settings["algorithm"], **hyper_parameters}
    schedule = calls.build_from_table(
        table.pop(SCHEDULE), TABLES[f"algorithm.{SCHEDULE}"].registry, f"config.algorithm.{SCHEDULE}"
    )
    if schedule:
        table[SCHEDULE] = schedule
    algorithm = calls.build_from_table(table, TABLES["algorithm"].registry, "config.algorithm")
    uplink = algorithm.uplink + tuple(
        calls.build_from_table(table, UPLINK.registry, f"config.uplink.{number}")
        for number, table in enumerate(settings.get("uplink", ()))
    )
    if aggregator := _build_optional(settings, "aggregator"):
        algorithm = replace(algorithm, aggregator=aggregator)
    mechanism = record_privacy.build_mechanism(settings)
    objective = with_task_loss(algorithm.objective, settings["task_loss"])
    return replace(algorithm, objective=objective, uplink=uplink, record_privacy=mechanism)


def check_rules(settings: Mapping[str, Any]) -> None:
    """Raise InputError if the factory of a rule that needs no data refuses its options."""
    build_algorithm(settings)
    for where in ("poison", "timing", "asynchronous"):
        _build_optional(settings, where)


def common_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Reduce settings to those that runs of one program share: all but the seed and the algorithm's real numbers.

    The program depends on whole numbers and on those of nested tables. A sweep over any other that it depends on fails.
    """
    algorithm = {key: value for key, value in settings["algorithm"].items() if not isinstance(value, float)}
    return {**settings, "seed": None, "algorithm": algorithm}


def build_sweep(runs: Sequence[Mapping[str, Any]]) -> Sweep:
    """Build the algorithm of runs with the same `common_settings`, given the settings of each.

    Numbers that a study searches are arguments of the program even if all runs have the same, so that a kept program
    serves other numbers as well.

    Raises:
        InputError: The runs differ in more, or the algorithm's factory refuses a number.
    """
    first, *others = map(common_settings, runs)
    for other in others:
        if lines := list(describe_differences(first, other)):
            raise InputError(
                "these runs cannot be trained in one program (key: in the first / in another): " + "; ".join(lines)
            )
    tables = [run["algorithm"] for run in runs]
    schema = TABLES["algorithm"].schema(tables[0], "config.algorithm")
    values = {key: [table[key] for table in tables] for key in tables[0] if key not in first["algorithm"]}
    varied = {key: numbers for key, numbers in values.items() if schema[key].search or len(set(numbers)) > 1}
    return Sweep(partial(build_algorithm, runs[0]), varied)


def resolve_auto(
    settings: Mapping[str, Any], federation: Federation, resolved: Mapping[str, Any] = MappingProxyType({})
) -> dict[str, Any]:
    """Replace "auto" by the value that the data determine, and resolve the noise of a privacy budget.

    Args:
        settings: complete settings.
        federation: the data.
        resolved: the record of resolved.json of an earlier start.
    """
    settings = privacy.resolve_noise(settings, federation.num_clients, resolved)
    sampled = build_algorithm(settings).local_update, federation, _build_participation(settings, federation.num_clients)
    settings = record_privacy.Account(settings, *sampled).resolve_noise(resolved)
    data, choice = dict(settings["data"]), settings["personal_on_test"]
    if data["client_test_fraction"] == engine.simulation.AUTO:
        data["client_test_fraction"] = federation.fractions.client_test or 0.0
    return {**settings, "data": data, "personal_on_test": engine.is_personal_on_test(choice, federation)}


def build_simulation(parts: RunParts, runs: Sequence[Mapping[str, Any]], folder: Path) -> engine.Simulation:
    """Compile the simulation of one or several runs.

    Args:
        parts: the parts of the first run.
        runs: the settings of each run; they differ only in seeds and real numbers of the algorithm.
        folder: the folder for client states on disk.

    Raises:
        InputError: The runs differ in more, the program depends on one of the numbers, or the parts do not
                fit together.
    """
    settings = runs[0]
    diagnostics = parse_names("diagnostics", settings["diagnostics"], DIAGNOSTICS)
    names = ("rounds", "num_seeds", "evaluate_every", "on_nonfinite", "personal_on_test")
    given: tuple[Model, Federation] = parts.model, parts.federation
    if settings["model"]["cache_features"]:
        keep = partial(engine.cache_features, parts.model, parts.federation, folder=cache_folder() / "features")
        given = calls.call_factory(keep, {}, "config.model")
    return engine.Simulation(
        build_sweep(runs),
        *given,
        participation=parts.participation,
        timing=parts.timing,
        asynchronous=parts.asynchronous,
        layout=parts.layout,
        memory_budget=parse_size("memory_budget", settings["memory_budget"]),
        metrics=parse_names("metrics", settings["metrics"], METRICS),
        diagnostics={name: DIAGNOSTICS[name] for name in diagnostics},
        folder=folder,
        seed=[run["seed"] for run in runs],
        **parts.offload._asdict(),
        **{name: settings[name] for name in names},
    )


def describe_resolved(
    parts: RunParts, simulation: engine.Simulation, settings: Mapping[str, Any], names: Sequence[str] = ()
) -> dict[str, Any]:
    """Make the record of resolved.json: the values that "auto" was resolved to, and the reason.

    The results depend bitwise on them and on the runs that are trained in the same program, so a resumed run uses
    the same values again.

    Args:
        parts: the parts of the run.
        simulation: the compiled simulation.
        settings: the resolved settings of the run.
        names: the names of all runs in the program, if there are several.
    """
    choice = simulation.choice
    record = {
        "layout": str(simulation.layout),
        "reason": choice.reason if choice else "as the config says",
        "seconds_a_round": {str(timing.candidate): timing.seconds for timing in choice.timings} if choice else {},
        "conv": choice.conv if choice and choice.conv else parts.conv,
        "devices": _describe_devices(),
    }
    record |= privacy.describe_noise(settings) | record_privacy.describe_noise(settings)
    return record | dict(parts.resolved) | simulation.offload._asdict() | {"beside": list(names)}


def _describe_devices() -> str:
    several = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}{several}"


def _choose_conv_impl(precision: str, processes: Processes, *, is_timed: bool = False) -> str:
    """Choose how all processes compute convolutions: "im2col" if a host has no compiler for kernels, "auto": timed."""
    names = set(processes.all_gather("conv", select_conv_impl(precision)))
    if len(names) > 1:
        return "im2col"
    return "auto" if is_timed else names.pop()


def _build_optional(settings: Mapping[str, Any], where: str, **given: Any) -> Any:
    """Build what one of the optional tables describes; None where the settings do not have it."""
    table = settings.get(where)
    return calls.build_from_table(table, OPTIONAL_TABLES[where].registry, f"config.{where}", **given) if table else None


def _build_participation(settings: Mapping[str, Any], num_clients: int) -> Any:
    size, availability = settings["cohort_size"], settings["availability"]
    if size > num_clients:
        raise InputError(
            f"config.cohort_size: {size} clients per round, but there are {num_clients}."
            f" Set it to {num_clients} or less (0 = all), or raise config.data.num_clients."
        )
    if table := settings.get("participation"):
        rule = OPTIONAL_TABLES["participation"].registry[table["name"]]
        takes_size = "cohort_size" in inspect.signature(rule).parameters
        if size and not takes_size:
            raise InputError(f"config.cohort_size: '{table['name']}' draws no fixed number of clients. Leave it at 0.")
        among = _build_optional(settings, "participation", **({"cohort_size": size} if takes_size else {}))
    else:
        among = participation.uniform(size) if size else participation.full()
    return among if availability == 1 else participation.bernoulli(availability, among=among)
