"""From settings to a compiled simulation; everything that can be wrong in them is said here, before compiling."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

from fedjax_het import engine, participation
from fedjax_het.algorithm import Algorithm
from fedjax_het.client.objectives import with_task_loss
from fedjax_het.data import Dataset, Federation, federate
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import OffloadPolicy, Sweep
from fedjax_het.errors import InputError
from fedjax_het.models import computed_in, select_conv_impl
from fedjax_het.types import Array, Model

from ..distributed import cpu_devices
from ..distributed.collectives import SINGLE, Processes
from ..runs.run_directory import describe_differences
from ..runs.setting_text import parse_layout, parse_names, parse_size
from . import calls
from .settings import SCHEDULE, TABLES


class RunParts(NamedTuple):
    """What the tables of a config stand for."""

    dataset: Dataset
    federation: Federation
    model: Model
    algorithm: Algorithm
    layout: Any
    offload: OffloadPolicy  # of client states and examples
    participation: Any
    conv: str | None  # how convolutions are computed, where the model has any
    kept: Mapping[str, Any]  # the earlier choices that these follow; empty where there are none for these devices


def build_parts(
    settings: Mapping[str, Any], earlier: Mapping[str, Any] = MappingProxyType({}), processes: Processes = SINGLE
) -> RunParts:
    """Call the tables. earlier: what an earlier start of this run made of "auto", see `choices`.

    Raises InputError for values that the factories refuse, and for a cohort of more than all.
    """
    layout = read_layout(settings["layout"], processes)
    is_auto = layout == engine.simulation.AUTO
    kept = (
        earlier
        if earlier.get("devices") == _describe_devices() and (is_auto or earlier["layout"] == str(layout))
        else {}
    )
    if is_auto and kept:
        layout = read_layout(kept["layout"], processes)
    table = dict(settings["model"])
    if table.get("conv") == "auto":
        former = kept.get("conv")
        former = "im2col" if former == "patches" else former  # as earlier versions wrote it
        table["conv"] = former or _choose_convolution(settings["precision"], processes)
    dataset, federation = build_federation(settings["data"])
    participation = _build_participation(settings, federation.num_clients)
    model = calls.build_from_table(table, TABLES["model"].registry, "config.model", num_classes=federation.num_classes)
    model = computed_in(settings["precision"])(model)
    residence = OffloadPolicy(*(_requested(settings[name], kept.get(name)) for name in OffloadPolicy._fields))
    conv = table.get("conv")
    return RunParts(dataset, federation, model, build_algorithm(settings), layout, residence, participation, conv, kept)


def build_algorithm(settings: Mapping[str, Any], **hyper_parameters: float | Array) -> Algorithm:
    """Of the settings, but for these hyper-parameters. Raises InputError for values that its factory refuses."""
    table = {key: value for key, value in settings["algorithm"].items() if key not in hyper_parameters}
    schedule = calls.build_from_table(
        table.pop(SCHEDULE), TABLES[f"algorithm.{SCHEDULE}"].registry, f"config.algorithm.{SCHEDULE}"
    )
    given = {SCHEDULE: schedule} if schedule else {}
    chosen = calls.build_from_table(
        table, TABLES["algorithm"].registry, "config.algorithm", **given, **hyper_parameters
    )
    return replace(chosen, objective=with_task_loss(chosen.objective, settings["task_loss"]))


def common_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What runs have in common that can be one program: all but the seed and the algorithm's real numbers.

    Whole numbers are sizes and counts, which the program itself depends on, and numbers of inner tables stay what they
    are. A real number on which the program depends all the same is refused when the sweep over it is traced.
    """
    of_algorithm = {key: value for key, value in settings["algorithm"].items() if not isinstance(value, float)}
    return {**settings, "seed": None, "algorithm": of_algorithm}


def sweep(runs: Sequence[Mapping[str, Any]]) -> Sweep:
    """The algorithm of runs with the same `common_settings`.

    Raises InputError for runs that differ in more, and for numbers that the algorithm's factory refuses.
    """
    first, *others = map(common_settings, runs)
    for other in others:
        if lines := list(describe_differences(first, other)):
            raise InputError("these runs cannot be one program (key: in the first / in another): " + "; ".join(lines))
    for each in runs:
        build_algorithm(each)  # which names the setting where it is refused
    tables = [each["algorithm"] for each in runs]
    values = {key: [table[key] for table in tables] for key in tables[0] if key not in first["algorithm"]}
    return Sweep(partial(build_algorithm, runs[0]), {key: each for key, each in values.items() if len(set(each)) > 1})


def resolve_auto(settings: Mapping[str, Any], federation: Federation) -> dict[str, Any]:
    """The settings with numbers in the place of "auto" where the data decide what it comes to."""
    data, on_test = dict(settings["data"]), settings["personal_on_test"]
    if data["client_test_fraction"] == engine.simulation.AUTO:
        data["client_test_fraction"] = federation.fractions.client_test or 0.0
    return {**settings, "data": data, "personal_on_test": engine.is_personal_on_test(on_test, federation)}


def _requested(setting: str, earlier: str | None) -> str:
    return earlier if setting == engine.simulation.AUTO and earlier else setting


def build_simulation(
    parts: RunParts, settings: Mapping[str, Any], folder: Path, beside: Sequence[Mapping[str, Any]] = ()
) -> engine.Simulation:
    """Check the wiring and compile.   folder: for client states that are kept on the disk.   beside: settings with
    other numbers for the algorithm, or another seed, whose runs are trained in the same program.

    Raises InputError where they differ in more, or in numbers on which the program depends.
    """
    chosen = parse_names("diagnostics", settings["diagnostics"], DIAGNOSTICS)
    names = ("rounds", "num_seeds", "evaluate_every", "on_nonfinite", "personal_on_test")
    return engine.Simulation(
        sweep([settings, *beside]),
        parts.model,
        parts.federation,
        participation=parts.participation,
        layout=parts.layout,
        memory_budget=parse_size("memory_budget", settings["memory_budget"]),
        diagnostics={name: DIAGNOSTICS[name] for name in chosen},
        folder=folder,
        seed=[settings["seed"], *(each["seed"] for each in beside)],
        **parts.offload._asdict(),
        **{name: settings[name] for name in names},
    )


def describe_choices(parts: RunParts, simulation: engine.Simulation, beside: Sequence[str] = ()) -> dict[str, Any]:
    """What "auto" came to, and why: a resumed run keeps it, for bits depend on it; as they do on the runs `beside`."""
    timings = simulation.choice.timings if simulation.choice else []
    chosen = {
        "layout": str(simulation.layout),
        "reason": simulation.choice.reason if simulation.choice else "as the config says",
        "seconds_a_round": {str(timing.layout): timing.seconds for timing in timings},
        "conv": parts.conv,
        "devices": _describe_devices(),
    }
    return chosen | dict(parts.kept) | simulation.offload._asdict() | {"beside": list(beside)}


def _describe_devices() -> str:
    several = f" in {jax.process_count()} processes" if jax.process_count() > 1 else ""
    return f"{jax.device_count()} x {jax.devices()[0].device_kind}{several}"


def _choose_convolution(precision: str, processes: Processes) -> str:
    """What "auto" is for convolutions: one way for all, so that one host without a compiler decides for the others."""
    said = set(processes.all_gather("conv", select_conv_impl(precision)))
    return said.pop() if len(said) == 1 else "im2col"


def read_dataset(table: Mapping[str, Any]) -> Dataset:
    """Read a data set. The table's options that are its source's go to it, by its signature."""
    source, fixed = calls.choose_factory(table, TABLES["data"].registry, "config.data"), TABLES["data"].fixed
    options = {key: value for key, value in table.items() if key not in ("name", "partition", "augment", *fixed)}
    return calls.call_factory(source, options, "config.data")


def build_federation(table: Mapping[str, Any], whole: Dataset | None = None) -> tuple[Dataset, Federation]:
    """Read a data set and distribute it: the table's options go to its source, its partition and to `federate`.

    whole: the data set, where it has been read.
    """
    of_split = {key: value for key, value in table.items() if key in TABLES["data"].fixed}
    partition = calls.build_from_table(table["partition"], TABLES["data.partition"].registry, "config.data.partition")
    augment = calls.build_from_table(table["augment"], TABLES["data.augment"].registry, "config.data.augment")
    whole = whole or read_dataset(table)
    return whole, calls.call_factory(
        _federate, of_split, "config.data", dataset=whole, partition=partition, augment=augment
    )


def _federate(unseen: str, **options: Any) -> Federation:
    return federate(unseen_domains=[name.strip() for name in unseen.split(",") if name.strip()], **options)


def _build_participation(settings: Mapping[str, Any], num_clients: int) -> Any:
    size, availability = settings["cohort_size"], settings["availability"]
    if size > num_clients:
        raise InputError(
            f"config.cohort_size: {size} clients a round of {num_clients} altogether."
            f" Set it to {num_clients} or less (0 = everyone), or raise config.data.num_clients."
        )
    among = participation.uniform(size) if size else participation.full()
    return among if availability == 1 else participation.bernoulli(availability, among=among)


def read_layout(text: str, processes: Processes = SINGLE) -> engine.Layout | str:
    """The layout that a setting writes, "sharded(2, 4)", or "auto" itself.

    Raises InputError where there are not so many devices, and for several processes that would not share the work.
    """
    name, numbers = parse_layout(text)
    if name == "auto":
        cpu_devices.set_num_cpu_devices(cpu_devices.cores_per_process(processes))
        return name
    if name == "sharded":
        _ask_for_devices(numbers[0], processes)
    elif processes.count > 1:
        raise InputError(
            f"config.layout: {text} is for one device, and {processes.count} processes have more. Write auto, or "
            "sharded(n) with as many devices as they have together."
        )
    if name == "vmapped":
        return engine.vmapped
    try:
        return getattr(engine, name)(*numbers)
    except ValueError as error:
        raise InputError(f"config.layout: {error}") from error


def _ask_for_devices(count: int, processes: Processes) -> None:
    cpu_devices.set_num_cpu_devices(min(cpu_devices.MAX_DEVICES, max(1, count // processes.count)))
    if count > jax.device_count():
        owner = "this process has" if processes.count == 1 else f"{processes.count} processes have"
        raise InputError(
            f"config.layout: sharded({count}) asks for {count} devices, {owner} {jax.device_count()}."
            " Shard over fewer, or use chunked(n)."
        )
