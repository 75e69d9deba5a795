"""Sentences on the examples that a run trains on and that each group of its figures is measured on.

All are made from the record that `outputs.partition` writes to partition.json; one of an older version, which lacks the
common test set and the fractions, gives shorter ones.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Partition = Mapping[str, Any]
NOT_MEASURED = "not measured: clients hold no examples out (data.client_test_fraction=0.2 would)"
NONE = "no examples"
_OWN_MODELS = ("personal", "personal_test", "personal_valid")
_RANDOM = "held out at random"


def describe_training(partition: Partition) -> str:
    """How many examples are trained on, and by whom."""
    clients = _clients(partition)
    counts = [client["train"] for client in clients]
    least, most = min(counts, default=0), max(counts, default=0)
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = f"{sum(counts):,} examples of {_number_of_clients(clients)} ({each} each)"
    is_whole = not _sum(clients, "valid") and not _sum(clients, "test")
    return f"{text}, none of theirs held out" if is_whole else text


def describe_measurement(partition: Partition, group: str) -> str:
    """The examples that a group of figures, "clients" or "unseen/sketch", is measured on."""
    fractions, (kind, _, name) = partition.get("fractions"), group.partition("/")
    if kind in ("test", "personal_test"):
        return _common_test(partition, fractions)
    if kind == "unseen":
        num = (partition.get("unseen") or {}).get(name)
        return f"{name}, a domain that no client has" + (f": {num:,} examples" if num is not None else "")
    split = "valid" if kind in ("valid", "personal_valid") else "test"
    clients = _clients(partition, is_newcomer=kind == "newcomers")
    num = _sum(clients, split)
    if kind == "newcomers":
        return f"{num:,} examples of {_number_of_clients(clients)} that never train"
    if not num:
        return NONE
    noun = "validation" if split == "valid" else "test"
    text = f"each client's own {noun} examples: {num:,} in all"
    if fractions is None:
        return text
    if (fraction := fractions[f"client_{split}"]) is None:
        return f"{text}, the data set's own {noun} split"
    return f"{text}, {_per_cent(fraction)} of each client's, {_RANDOM}"


def _common_test(partition: Partition, fractions: Mapping[str, float | None] | None) -> str:
    if fractions is None:
        return "the common test set"
    if partition["test"] is None:
        return NONE
    if fractions["test"] is None:
        return f"{partition['test']:,} examples, the data set's own test split"
    return f"{partition['test']:,} examples, {_per_cent(fractions['test'])}, {_RANDOM} before clients got theirs"


def measured_groups(partition: Partition, has_personal: bool, is_personal_on_test: bool) -> list[str]:
    """The groups of figures that a run will have.   has_personal: whether a part of the model stays with its client."""
    clients = _clients(partition)
    groups = ["test"] if partition["test"] is not None else []
    if _sum(clients, "test"):
        groups += ["clients", "personal"] if has_personal else ["clients"]
    groups += ["personal_test"] if has_personal and is_personal_on_test else []
    if _sum(clients, "valid"):
        groups += ["valid", "personal_valid"] if has_personal else ["valid"]
    groups += ["newcomers"] if _sum(_clients(partition, is_newcomer=True), "test") else []
    return [*groups, *(f"unseen/{name}" for name in partition["unseen"])]


def groups_of(figures: Iterable[str]) -> list[str]:
    """The groups that figures by these names belong to: of "unseen/sketch/accuracy" it is "unseen/sketch"."""
    found = dict.fromkeys(name.rpartition("/")[0] for name in figures)
    return [name for name in found if name not in ("", "train", "traffic")]


def rows(partition: Partition, groups: Sequence[str]) -> dict[str, str]:
    """What trains and what each group is measured on, by whose model; clients' own where it is not measured, too."""
    found = {"trains on": describe_training(partition)}
    for group in groups:
        model = "each client's own model" if group in _OWN_MODELS else "the server's model"
        found[f"{group}/"] = f"{model} on {describe_measurement(partition, group)}"
    return found if "clients" in groups else found | {"clients/": NOT_MEASURED}


def describe_runs(runs: Sequence[tuple[str, str, Partition]], groups: Sequence[str]) -> str:
    """What runs train on and what groups of their figures are measured on, in one line; "" where there is no run.

    Args:
        runs: the label of each, the domain left out, or "", and its partition. Runs are named where they differ.
        groups: as of `describe_measurement`.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for label, left_out, partition in runs:
        parts = [f"{group}: {describe_measurement(partition, group)}" for group in groups]
        if len(groups) == 1:
            parts = [f"measured on {describe_measurement(partition, *groups)}"]
        text = "; ".join([f"trained on {describe_training(partition)}", *parts])
        found.setdefault(text, []).append((label, left_out))
    if len(found) <= 1:
        return "".join(f"{text[0].upper()}{text[1:]}." for text in found)
    return " ".join(f"{name}: {text}." for name, text in zip(_tell_apart(list(found.values())), found, strict=True))


def _tell_apart(sets: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """A name for each set of (label, domain left out): by the domains or by the labels alone where they differ."""
    whole: Callable[[tuple[str, str]], str] = lambda run: f"{run[0]} without {run[1]}" if run[1] else run[0]  # noqa: E731
    for name in (lambda run: f"without {run[1]}", lambda run: run[0], whole):
        named = [list(dict.fromkeys(map(name, each))) for each in sets]
        if len(set().union(*named)) == sum(map(len, named)):
            break
    return [", ".join(each) for each in named]


def _clients(partition: Partition, is_newcomer: bool = False) -> list[Mapping[str, Any]]:
    return [client for client in partition["clients"] if client["is_newcomer"] == is_newcomer]


def _sum(clients: Sequence[Mapping[str, Any]], split: str) -> int:
    return sum(client[split] for client in clients)


def _number_of_clients(clients: Sequence[Any]) -> str:
    return f"{len(clients):,} client{'s' * (len(clients) != 1)}"


def _per_cent(fraction: float) -> str:
    return f"{100 * fraction:.4g} %"
