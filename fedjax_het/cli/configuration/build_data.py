"""Construction of the data set and the federation that settings describe."""

import inspect
from collections.abc import Mapping
from typing import Any

from fedjax_het.cli.configuration import calls
from fedjax_het.cli.configuration.settings import TABLES
from fedjax_het.data import SHIFTS, Dataset, Federation, federate
from fedjax_het.errors import InputError


def read_dataset(table: Mapping[str, Any]) -> Dataset:
    """Read a data set, given the table config.data, whose options of the source go to the source, and shift it."""
    options = {key: table[key] for key in table if f"data.{key}" not in TABLES and key not in TABLES["data"].fixed}
    shift = calls.build_from_table(table["shift"], SHIFTS, "config.data.shift")
    return shift(calls.build_from_table(options, TABLES["data"].registry, "config.data"))


def build_federation(table: Mapping[str, Any], whole: Dataset | None = None) -> tuple[Dataset, Federation]:
    """Read a data set and distribute it.

    Args:
        table: config.data, whose options go to the source, the partition, the augmentation and `federate`.
        whole: the data set, if it has been read.
    """
    options = {key: value for key, value in table.items() if key in TABLES["data"].fixed}
    built = {
        name: calls.build_from_table(table[name], TABLES[f"data.{name}"].registry, f"config.data.{name}")
        for name in ("partition", "augment", "public")
    }
    built["drift"] = _build_drift(table)
    whole = whole or read_dataset(table)
    return whole, calls.call_factory(_federate, options, "config.data", dataset=whole, **built)


def _build_drift(table: Mapping[str, Any]) -> Any:
    """Build what config.data.drift describes, with the concepts of config.data.concepts if there are any."""
    registry, drift = TABLES["data.drift"].registry, table["drift"]
    family = calls.build_from_table(table["concepts"], TABLES["data.concepts"].registry, "config.data.concepts")
    if family is not None and "concepts" not in inspect.signature(registry[drift["name"]]).parameters:
        raise InputError(
            f"config.data.concepts: has no effect with config.data.drift.name='{drift['name']}'. Choose another drift, "
            "or leave concepts out."
        )
    given = {} if family is None else {"concepts": family}
    return calls.build_from_table(drift, registry, "config.data.drift", **given)


def _federate(unseen: str, **options: Any) -> Federation:
    try:
        return federate(unseen_domains=[name.strip() for name in unseen.split(",") if name.strip()], **options)
    except InputError as error:
        raise InputError(str(error).replace("unseen_domains", "unseen")) from error
