"""Complete, checked settings from the tables of a config and the command line."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, TypeVar

from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.cli import trackers
from fedjax_het.cli.configuration import calls
from fedjax_het.cli.configuration.grouped import grouped
from fedjax_het.cli.configuration.privacy import PrivacyBudget
from fedjax_het.cli.configuration.record_privacy import RecordBudget
from fedjax_het.cli.runs import setting_text
from fedjax_het.client.objectives import TaskLoss
from fedjax_het.client.schedules import SCHEDULES
from fedjax_het.data import AUGMENTATIONS, CONCEPTS, DRIFTS, PARTITIONS, POISONINGS, PUBLIC, SHIFTS, SOURCES, federate
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.engine import METRICS, EarlyStopping
from fedjax_het.engine.round import participation
from fedjax_het.engine.round.asynchronous import ASYNCHRONOUS
from fedjax_het.engine.round.timing import TIMINGS
from fedjax_het.errors import InputError, abbreviate, nearest, shorten
from fedjax_het.models import ADAPTERS, MODELS
from fedjax_het.privacy import RecordPrivacy
from fedjax_het.server.aggregators import AGGREGATORS
from fedjax_het.uplink import STAGES
from fedjax_het.validation import (
    Count,
    CountOrZero,
    PositiveFraction,
    Seed,
    check_constraints,
    constraints,
    refuse_without_effect,
)

R = TypeVar("R")
Settings = dict[str, Any]
SCHEDULE = "learning_rate_schedule"


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """The settings at the top level of a config."""

    rounds: Count = 100
    cohort_size: CountOrZero = 0  # clients per round; 0 = all
    availability: PositiveFraction = 1.0  # probability that a client of the cohort reports
    seed: Seed = 0
    num_seeds: Count = 1  # trained together: seed, seed + 1, ...
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward and backward passes
    task_loss: TaskLoss = "auto"  # by the kind of labels; or "dice", "joint" for masks, "mae", "huber" for numbers, ...
    layout: str = "auto"  # or "vmapped", "chunked(4)", "sharded(2)", "sharded(2, 4)": devices, chunk
    evaluate_every: Count = 10  # and after the last round
    checkpoint_every: CountOrZero = 10  # and after the last round; 0 = only then
    personal_on_test: bool | Literal["auto"] = "auto"  # whether personal models are also evaluated on the common test
    # set; auto: if clients have no test examples of their own
    metrics: str = ""  # names separated by commas, see engine.METRICS; "" = those of the kind of labels
    diagnostics: str = ""  # names separated by commas, see fedjax_het/diagnostics
    diagnose_every: Count = 10  # rounds; and before the first
    live: str = ""  # trackers, names separated by commas, see fedjax_het/cli/trackers
    on_nonfinite: Literal["drop", "raise"] = "drop"
    memory_budget: str | None = None  # of each device, "8GB"; None = what it has
    client_states: Literal["auto", "device", "host", "disk"] = "auto"  # auto: on the device if they fit
    examples: Literal["auto", "device", "stream"] = "auto"  # all on the device, or those of each round

    def __post_init__(self):
        check_constraints(constraints(RunSettings), vars(self))
        setting_text.parse_layout(self.layout)
        setting_text.parse_names("metrics", self.metrics, METRICS)
        setting_text.parse_names("diagnostics", self.diagnostics, DIAGNOSTICS)
        if not self.diagnostics:
            refuse_without_effect(RunSettings, "without diagnostics", diagnose_every=self.diagnose_every)
        trackers.names(self.live)
        setting_text.parse_size("memory_budget", self.memory_budget)


# ---- the tables of a config ------------------------------------------------------------------------------------------
class TableSpec(NamedTuple):
    """The origin of a table's options: the factory that it names, if any, and `fixed` options that it always has."""

    registry: calls.Registry
    given: tuple[str, ...] = ()
    fixed: Mapping[str, calls.Setting] = MappingProxyType({})

    def schema(self, table: Mapping[str, Any], where: str) -> dict[str, calls.Setting]:
        if not self.registry:
            return dict(self.fixed)
        factory = calls.choose_factory(table, self.registry, where)
        own = calls.read_signature(factory, self.given, table.get("preset"))
        return {"name": calls.Setting(str)} | own | dict(self.fixed)


_BUILT = ("partition", "augment", "public", "drift")  # from tables of their own
_SPLIT = calls.read_signature(federate, given=("dataset", "unseen_domains", *_BUILT)) | {
    "unseen": calls.Setting(str, ""),  # domains to hold out, "sketch" or "photo, sketch"
}
TABLES = {
    "algorithm": TableSpec(ALGORITHMS),
    f"algorithm.{SCHEDULE}": TableSpec(SCHEDULES),
    "model": TableSpec(
        {**MODELS, "grouped": grouped}, given=("num_classes",), fixed={"cache_features": calls.Setting(bool, False)}
    ),
    "model.adapter": TableSpec(ADAPTERS),
    "data": TableSpec(SOURCES, given=("name",), fixed=_SPLIT),
    "data.partition": TableSpec(PARTITIONS),
    "data.augment": TableSpec(AUGMENTATIONS),
    "data.shift": TableSpec(SHIFTS),
    "data.drift": TableSpec(DRIFTS, given=("concepts",)),
    "data.concepts": TableSpec(CONCEPTS),
    "data.public": TableSpec(PUBLIC, given=("name",)),
}
OPTIONAL_TABLES = {
    "participation": TableSpec(participation.PARTICIPATIONS, given=("cohort_size",)),
    "timing": TableSpec(TIMINGS),
    "asynchronous": TableSpec(ASYNCHRONOUS),
    "aggregator": TableSpec(AGGREGATORS),
    "poison": TableSpec(POISONINGS),
    "privacy": TableSpec({}, fixed=calls.read_signature(PrivacyBudget)),
    "record_privacy": TableSpec({}, fixed=calls.read_signature(RecordPrivacy) | calls.read_signature(RecordBudget)),
    "stop": TableSpec({}, fixed=calls.read_signature(EarlyStopping)),
}
"""Tables that are in the settings of a run only if its config or command line sets them."""
UPLINK = TableSpec(STAGES)
"""Each of the tables of the list config.uplink, whose keys are "uplink.0", "uplink.1", ..."""
# Nested tables, with their defaults.
_NESTED = {
    f"algorithm.{SCHEDULE}": {"name": "constant"},
    "model.adapter": {"name": "none"},
    "data.partition": {},
    "data.augment": {"name": "none"},
    "data.shift": {"name": "none"},
    "data.drift": {"name": "none"},
    "data.concepts": {"name": "none"},
    "data.public": {"name": "none"},
}


def defaults() -> Settings:
    """Return the default config."""
    sections = {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "num_clients": 10, "partition": {"name": "iid"}},
    }
    return sections | {field.name: field.default for field in fields(RunSettings)}


def complete_settings(
    settings: Settings, overrides: Mapping[str, str] = MappingProxyType({})
) -> tuple[Settings, list[str]]:
    """Apply overrides, check every value against the signature of its factory, and fill in every default.

    Arguments that follow the run (see `annotations.RunSetting`) have its settings as their defaults.

    Args:
        settings: the tables of the config file.
        overrides: dotted keys and texts of the command line, {"algorithm.mu": "0.01"}. If one gives a table another
            name, the options that the file has for the old name are dropped with a note. "uplink.1.name" appends a
            second stage to a file that has one.

    Returns:
        The complete settings, and the notes.

    Raises:
        InputError: A section or key is unknown, a key is missing, or a value has another type.
    """
    tables, overrides, notes = _split_tables(settings), dict(overrides), []
    for where in {key.partition(".")[0] for key in overrides} & OPTIONAL_TABLES.keys():
        tables.setdefault(where, {})
    while f"{(where := _next_stage(tables))}.name" in overrides:
        tables[where] = {}
    specs = {where: _find_spec(where) for where in tables if where}
    for where, table in specs.items():
        name = overrides.pop(f"{where}.name", None) if table.registry else None
        if name is not None and name != tables[where].get("name"):
            notes += _rename(tables[where], table, name, f"config.{where}")
        if f"{where}.preset" in overrides and hasattr(table.registry.get(tables[where].get("name", "")), "presets"):
            tables[where]["preset"] = overrides.pop(f"{where}.preset")
    schemas = {"": calls.read_signature(RunSettings)}
    schemas |= {where: table.schema(tables[where], f"config.{where}") for where, table in specs.items()}
    for key, text in overrides.items():
        _override(tables, schemas, key, text)
    for where, schema in schemas.items():
        followed = {name: tables[""][option.run_setting] for name, option in schema.items() if option.run_setting}
        tables[where] = calls.check_table(followed | tables[where], schema, _location(where))
    calls.call_factory(RunSettings, tables[""], "config")
    for where, factories in {"privacy": (PrivacyBudget,), "record_privacy": (RecordPrivacy, RecordBudget)}.items():
        for factory in factories if where in tables else ():
            own = {name: tables[where][name] for name in calls.read_signature(factory)}
            calls.call_factory(factory, own, f"config.{where}")
    with_stop(tables, lambda stop: stop.check_rounds(tables[""]["rounds"], tables[""]["evaluate_every"]))
    return _join_tables(tables), notes


def with_stop(settings: Mapping[str, Any], use: Callable[[EarlyStopping], R]) -> R | None:
    """Apply a function to the rule of config.stop, whose InputErrors then name the setting; None without a rule."""
    table = settings.get("stop")
    return table and calls.call_factory(lambda **options: use(EarlyStopping(**options)), table, "config.stop")


def _next_stage(tables: Mapping[str, Settings]) -> str:
    """The key of the table that would be appended to config.uplink: "uplink.1" after one stage."""
    return f"uplink.{sum(where.startswith('uplink.') for where in tables)}"


def _find_spec(where: str) -> TableSpec:
    return UPLINK if where.startswith("uplink.") else (TABLES | OPTIONAL_TABLES)[where]


def _location(where: str) -> str:
    return f"config.{where}".rstrip(".")


def _split_tables(settings: Settings) -> dict[str, Settings]:
    """Return the tables by their dotted keys; sections that the file does not have get their defaults."""
    tables = {"": defaults() | settings}
    for where in TABLES:
        outer, _, name = where.rpartition(".")
        tables[where] = _check_table(tables[outer].pop(name, _NESTED.get(where)), where)
    for where in OPTIONAL_TABLES.keys() & tables[""].keys():
        tables[where] = _check_table(tables[""].pop(where), where)
    stages = tables[""].pop("uplink", ())
    if isinstance(stages, str | Mapping) or not isinstance(stages, Sequence):
        raise InputError(f"config.uplink must be a list of tables, got {shorten(stages)}. Write ({{'name': 'clip'}},).")
    tables |= {f"uplink.{i}": _check_table(stage, f"uplink.{i}") for i, stage in enumerate(stages)}
    known = [*defaults(), "uplink", *OPTIONAL_TABLES]
    for key in tables[""].keys() - set(known):
        raise InputError(f"config.{key} is unknown. {nearest(key, known)}")
    return tables


def _check_table(value: Any, where: str) -> Settings:
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"config.{where} must be a table, got {value!r}. Write {where} = dict(name={value!r}).")


def _join_tables(tables: Mapping[str, Settings]) -> Settings:
    whole: Settings = {name: dict(tables[name]) for name in ("algorithm", "model", "data")}
    for where in _NESTED:
        outer, _, name = where.partition(".")
        whole[outer][name] = tables[where]
    whole |= {where: tables[where] for where in OPTIONAL_TABLES if where in tables}
    if stages := [table for where, table in tables.items() if where.startswith("uplink.")]:
        whole["uplink"] = stages
    return whole | tables[""]


def _rename(table: Settings, kind: TableSpec, name: str, where: str) -> list[str]:
    old, table["name"] = table.get("name"), name
    schema = kind.schema(table, where)
    for key, option in schema.items():
        if option.table is not None and isinstance(table.get(key), Mapping):
            table[key] = {inner: value for inner, value in table[key].items() if inner in option.table}
    unknown = [key for key in table if key not in schema]
    return [f"{where}.{key} = {table.pop(key)!r} is an option of {old}, not of {name}: dropped." for key in unknown]


def _override(tables: dict[str, Settings], schemas: Mapping[str, Mapping[str, calls.Setting]], key: str, text: str):
    where, _, name = key.rpartition(".")
    outer, _, inner = where.rpartition(".")
    if (option := schemas.get(outer, {}).get(inner)) and option.table is not None:  # a table inside an algorithm's
        tables[outer][inner] = dict(tables[outer].get(inner, {}))
        tables, schemas = {where: tables[outer][inner]}, {where: option.table}
    if key in TABLES or key in OPTIONAL_TABLES:
        first = "name" if _find_spec(key).registry else next(iter(schemas[key]))
        raise InputError(f"--config.{key} is a table. Set --config.{key}.{first}={text}")
    if key == "uplink":
        raise InputError("--config.uplink is a list of tables. Give it in a file; set one: --config.uplink.0.norm=1")
    if where in schemas and name not in schemas[where] and (others := _find_keys(name, schemas)):
        raise InputError(f"--config.{key} is unknown. Did you mean '--config.{others[0]}'?")
    if where not in schemas:
        raise InputError(f"--config.{key}: there is no table '{where}'. {nearest(where, filter(None, schemas))}")
    if name not in schemas[where]:
        known = schemas[where] if where else [*schemas[where], *TABLES]
        raise InputError(f"--config.{key} is unknown. {nearest(name, known)}")
    if (table := schemas[where][name].table) is not None:
        raise InputError(f"--config.{key} is a table of options. Set one: --config.{key}.{next(iter(table))}=...")
    try:
        tables[where][name] = calls.parse_text(text, schemas[where][name].kind)
    except TypeError as error:
        raise InputError(f"--config.{key}: {error}.") from error


def find_setting(name: str) -> str | None:
    """Find the key of a setting of the default config from its name alone, "algorithm.learning_rate" from "lr"."""
    tables = _split_tables({})
    schemas = {where: _find_spec(where).schema(table, where) for where, table in tables.items() if where}
    return next(iter(_find_keys(name, {"": calls.read_signature(RunSettings), **schemas})), None)


def _find_keys(name: str, schemas: Mapping[str, Mapping[str, calls.Setting]]) -> list[str]:
    """The keys of settings with this name, or with this abbreviation, in any table."""
    keys = [f"{where}.{key}".lstrip(".") for where, schema in schemas.items() for key in schema if key != "name"]
    return [key for key in keys if key.rpartition(".")[2] == name] or [key for key in keys if abbreviate(key) == name]
