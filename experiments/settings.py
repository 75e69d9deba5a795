"""From a config file and the command line to one complete, checked table of settings."""

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

from ml_collections import ConfigDict

from experiments import config, live, words
from fedjax_het.algorithms import ALGORITHMS
from fedjax_het.client.schedules import SCHEDULES
from fedjax_het.data import AUGMENTATIONS, PARTITIONS, SOURCES, federate
from fedjax_het.diagnostics import DIAGNOSTICS
from fedjax_het.errors import InputError, nearest
from fedjax_het.models import MODELS

Settings = dict[str, Any]
SCHEDULE = "learning_rate_schedule"

_LEAST = {"rounds": 1, "num_seeds": 1, "evaluate_every": 1, "diagnose_every": 1}
_LEAST |= {"seed": 0, "cohort_size": 0, "checkpoint_every": 0}


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is set at the top of a config."""

    rounds: int = 100
    cohort_size: int = 0  # clients a round; 0 = everyone
    availability: float = 1.0  # chance that a client of the cohort answers
    seed: int = 0
    num_seeds: int = 1  # runs side by side, seeds seed, seed + 1, ...
    precision: Literal["float32", "bfloat16"] = "float32"  # of the forward and backward passes
    task_loss: str = "cross_entropy"  # or "dice", or "joint", the mean of both, for masks
    layout: str = "auto"  # or "vmapped", "chunked(4)", "sharded(2)", "sharded(2, 4)": devices, chunk
    evaluate_every: int = 10  # and after the last round
    checkpoint_every: int = 10  # and after the last round; 0 = only then
    personal_on_test: bool | Literal["auto"] = "auto"  # score own models on the common test set too; auto: where
    # clients have no test examples of their own
    diagnostics: str = ""  # names with commas between, see fedjax_het/diagnostics
    diagnose_every: int = 10  # rounds; and before the first
    live: str = ""  # where to follow the run, names with commas between, see experiments/live
    on_nonfinite: Literal["drop", "raise"] = "drop"
    memory_budget: str | None = None  # of each device, "8GB"; None = no limit
    client_states: Literal["auto", "device", "host", "disk"] = (
        "auto"  # where they lie; auto: on the device if it can be
    )
    examples: Literal["auto", "device", "stream"] = "auto"  # all on the device, or each round's alone

    def __post_init__(self):
        for name, least in _LEAST.items():
            if getattr(self, name) < least:
                raise InputError(f"{name} must be {least} or more, got {getattr(self, name)}.")
        if not 0 <= self.availability <= 1:
            raise InputError(f"availability must lie between 0 and 1, got {self.availability}. 1 = always there.")
        words.parse_layout(self.layout)
        words.parse_names("diagnostics", self.diagnostics, DIAGNOSTICS)
        live.names(self.live)
        words.parse_size("memory_budget", self.memory_budget)


# ---- the tables of a config ------------------------------------------------------------------------------------------
class Table(NamedTuple):
    """Where a table's options come from: the factory it names, and `fixed`, options that it has whatever it names."""

    registry: config.Registry
    given: tuple[str, ...] = ()
    fixed: Mapping[str, config.Option] = MappingProxyType({})

    def schema(self, table: Mapping[str, Any], where: str) -> dict[str, config.Option]:
        factory = config.choose(table, self.registry, where)
        return {"name": config.Option(str)} | config.options(factory, self.given) | dict(self.fixed)


_SPLIT = config.options(federate, given=("dataset", "partition", "unseen_domains", "augment")) | {
    "unseen": config.Option(str, ""),  # domains to hold out, "sketch" or "photo, sketch"
}
TABLES = {
    "algorithm": Table(ALGORITHMS),
    f"algorithm.{SCHEDULE}": Table(SCHEDULES),
    "model": Table(MODELS, given=("num_classes",)),
    "data": Table(SOURCES, given=("name",), fixed=_SPLIT),
    "data.partition": Table(PARTITIONS),
    "data.augment": Table(AUGMENTATIONS),
}
# Tables inside tables, and what stands for one that a file leaves out.
_INNER = {
    f"algorithm.{SCHEDULE}": {"name": "constant"},
    "data.partition": {},
    "data.augment": {"name": "none"},
}


def defaults() -> ConfigDict:
    """Every section with its default; a config file may start from this, or from an empty ConfigDict."""
    sections = {
        "algorithm": {"name": "fedavg"},
        "model": {"name": "mlp"},
        "data": {"name": "digits", "num_clients": 10, "partition": {"name": "iid"}},
    }
    return ConfigDict(sections | {field.name: field.default for field in fields(Run)})


def load(path: str | Path) -> Settings:
    """What a config file's get_config() returns, as plain dicts."""
    path = Path(path)
    if path.suffix != ".py" or not path.is_file():
        raise InputError(f"--config: there is no Python file '{path}'. Start from configs/quickstart.py.")
    spec = importlib.util.spec_from_file_location(f"config_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if not hasattr(module, "get_config"):
        raise InputError(f"--config: '{path}' defines no get_config(). It must return a ConfigDict.")
    return ConfigDict(module.get_config()).to_dict()


def complete(settings: Settings, overrides: Mapping[str, str] = MappingProxyType({})) -> tuple[Settings, list[str]]:
    """(the settings, every value checked against the signature it goes to, every default filled in; notes).

    `overrides` are dotted keys and texts from the command line, {"algorithm.mu": "0.01"}. Where they give a table
    another name, options that the file wrote for the old name are dropped, and a note says so. Arguments that follow
    the run (see `algorithm.OfRun`) take its settings where nothing else is set.
    Raises InputError for unknown sections and keys, missing keys, and values of another type.
    """
    tables, overrides, notes = _apart(settings), dict(overrides), []
    for where, table in TABLES.items():
        if (name := overrides.pop(f"{where}.name", None)) not in (None, tables[where].get("name")):
            notes += _rename(tables[where], table, name, f"config.{where}")
    schemas = {where: table.schema(tables[where], f"config.{where}") for where, table in TABLES.items()}
    schemas[""] = config.options(Run)
    for key, text in overrides.items():
        _override(tables, schemas, key, text)
    tables[""] = config.checked(tables[""], schemas[""], _at(""))
    for where, schema in schemas.items():
        followed = {name: tables[""][option.of_run] for name, option in schema.items() if option.of_run}
        tables[where] = config.checked(followed | tables[where], schema, _at(where))
    config.called(Run, tables[""], "config")
    return _together(tables), notes


def _at(where: str) -> str:
    return f"config.{where}".rstrip(".")


def _apart(settings: Settings) -> dict[str, Settings]:
    """The tables side by side, by their dotted place; sections that the file leaves out take their default."""
    settings = defaults().to_dict() | settings
    tables = {}
    for where in ("algorithm", "model", "data"):
        tables[where] = _table(settings.pop(where), where)
    for where, default in _INNER.items():
        outer, _, name = where.partition(".")
        tables[where] = _table(tables[outer].pop(name, default), where)
    for key in settings.keys() - config.options(Run).keys():
        raise InputError(
            f"config.{key} is unknown. {nearest(key, [*config.options(Run), 'algorithm', 'model', 'data'])}"
        )
    return tables | {"": settings}


def _table(value: Any, where: str) -> Settings:
    if isinstance(value, Mapping):
        return dict(value)
    raise InputError(f"config.{where} must be a table, got {value!r}. Write {where} = dict(name={value!r}).")


def _together(tables: Mapping[str, Settings]) -> Settings:
    whole = {name: dict(tables[name]) for name in ("algorithm", "model", "data")}
    for where in _INNER:
        outer, _, name = where.partition(".")
        whole[outer][name] = tables[where]
    return whole | tables[""]


def _rename(table: Settings, kind: Table, name: str, where: str) -> list[str]:
    old, table["name"] = table.get("name"), name
    unknown = [key for key in table if key not in kind.schema(table, where)]
    return [f"{where}.{key} = {table.pop(key)!r} belongs to {old}, not to {name}: dropped." for key in unknown]


def _override(tables: dict[str, Settings], schemas: Mapping[str, Mapping[str, config.Option]], key: str, text: str):
    where, _, name = key.rpartition(".")
    if key in TABLES:
        raise InputError(f"--config.{key} is a table. Set --config.{key}.name={text}")
    if where not in schemas:
        raise InputError(f"--config.{key}: there is no table '{where}'. {nearest(where, TABLES)}")
    if name not in schemas[where]:
        known = schemas[where] if where else [*schemas[where], *TABLES]
        raise InputError(f"--config.{key} is unknown. {nearest(name, known)}")
    try:
        tables[where][name] = config.parsed(text, schemas[where][name].kind)
    except TypeError as error:
        raise InputError(f"--config.{key}: {error}.") from error
