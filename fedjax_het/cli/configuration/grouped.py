"""The model "grouped" of a config: a list of tables, one per network."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedjax_het.cli.configuration import calls
from fedjax_het.errors import InputError, shorten
from fedjax_het.models import MODELS
from fedjax_het.models import grouped as group_networks
from fedjax_het.types import Model


def grouped(num_classes: int, networks: Sequence[Any], assignment: Sequence[int] | None = None) -> Model:
    """Build networks of different architecture for groups of clients, see `fedjax_het.models.grouped`.

    Args:
        num_classes: The number of classes.
        networks: A table for each network: {"name": "lenet"}, with its options.
        assignment: The number of the network of each client (default None: client i has network i modulo their number).
    """
    built = []
    for number, table in enumerate(networks):
        where = f"networks.{number}"
        if not isinstance(table, Mapping):
            raise InputError(f"{where}: it must be a table, got {shorten(table)}. Write {{'name': 'lenet'}}.")
        factory = calls.choose_factory(table, MODELS, where)
        schema = {"name": calls.Setting(str)} | calls.read_signature(factory, ("num_classes",), table.get("preset"))
        built.append(
            calls.build_from_table(calls.check_table(table, schema, where), MODELS, where, num_classes=num_classes)
        )
    return group_networks(built, assignment)
