"""Descriptions of the examples that a run trains on and that each group of its figures is measured on.

They are made from the records of partition.json (`records.describe_partition`); those of an older version, which lack
the common test set and the fractions, give shorter descriptions.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Partition = Mapping[str, Any]
NOT_MEASURED = "not measured: no client holds examples out (set data.client_test_fraction=0.2 to do so)"
NONE = "no examples"
_OWN_MODELS = ("personal", "personal_test", "personal_valid")
_RANDOM = "held out at random"


def describe_training(partition: Partition) -> str:
    """Describe how many examples are trained on, and by how many clients."""
    clients = _clients(partition)
    counts = [client["train"] for client in clients]
    least, most = min(counts, default=0), max(counts, default=0)
    each = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    text = f"{sum(counts):,} examples of {_number_of_clients(clients)} ({each} each)"
    held_out = {noun: _sum(clients, split) for split, noun in (("valid", "validation"), ("test", "test"))}
    held_out_text = " and ".join(f"{num:,} for {noun}" for noun, num in held_out.items() if num)
    return f"{text}, {held_out_text or 'none'} of theirs held out"


def describe_measurement(partition: Partition, group: str) -> str:
    """Describe the examples that a group of figures, "clients" or "unseen/sketch", is measured on."""
    fractions, (kind, _, name) = partition.get("fractions"), group.partition("/")
    if kind in ("test", "personal_test"):
        return _describe_common_test(partition, fractions)
    if kind == "unseen":
        num = (partition.get("unseen") or {}).get(name)
        return f"{name}, a domain that no client has" + (f": {num:,} examples" if num is not None else "")
    if kind == "domains":
        return "the domains that no client has, each by itself"
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


def _describe_common_test(partition: Partition, fractions: Mapping[str, float | None] | None) -> str:
    if fractions is None:
        return "the common test set"
    if partition["test"] is None:
        return NONE
    if fractions["test"] is None:
        return f"{partition['test']:,} examples, the data set's own test split"
    return f"{partition['test']:,} examples, {_per_cent(fractions['test'])}, {_RANDOM} before clients got theirs"


def measured_groups(partition: Partition, has_personal: bool, is_personal_on_test: bool) -> list[str]:
    """List the groups of figures that a run will have.

    Args:
        partition: the record of partition.json.
        has_personal: whether a part of the model is personal to each client.
        is_personal_on_test: whether own models are measured on the common test set, too.
    """
    clients = _clients(partition)
    groups = ["test"] if partition["test"] is not None else []
    if _sum(clients, "test"):
        groups += ["clients", "personal"] if has_personal else ["clients"]
    groups += ["personal_test"] if has_personal and is_personal_on_test else []
    if _sum(clients, "valid"):
        groups += ["valid", "personal_valid"] if has_personal else ["valid"]
    groups += ["newcomers"] if _sum(_clients(partition, is_newcomer=True), "test") else []
    unseen = [f"unseen/{name}" for name in partition["unseen"]]
    return [*groups, *unseen, *(["domains"] if len(unseen) > 1 else [])]


def groups_of(figures: Iterable[str]) -> list[str]:
    """List the groups that figures by these names belong to: "unseen/sketch" for "unseen/sketch/accuracy"."""
    groups = dict.fromkeys(name.rpartition("/")[0] for name in figures)
    return [name for name in groups if name not in ("", "train", "traffic")]


def describe_run(partition: Partition, has_personal: bool, is_personal_on_test: bool) -> dict[str, str]:
    """Describe, before a run, what it will train on and be measured on; see `describe_groups`.

    Args:
        partition: the record of partition.json.
        has_personal: whether clients have models of their own.
        is_personal_on_test: whether these are measured on the common test set, too.
    """
    groups = measured_groups(partition, has_personal, is_personal_on_test)
    rows = describe_groups(partition, groups)
    is_unmeasured = has_personal and not set(_OWN_MODELS) & set(groups)
    return rows | ({"personal/": NOT_MEASURED} if is_unmeasured else {})


def describe_groups(partition: Partition, groups: Sequence[str]) -> dict[str, str]:
    """Describe the training examples, and the model and examples of each group, and of "clients" in any case."""
    rows = {"trains on": describe_training(partition)}
    for group in groups:
        model = "each client's own model" if group in _OWN_MODELS else "the server's model"
        rows[f"{group}/"] = f"{model} on {describe_measurement(partition, group)}"
    return rows if "clients" in groups else rows | {"clients/": NOT_MEASURED}


def describe_runs(runs: Sequence[tuple[str, str, Partition]], groups: Sequence[str]) -> str:
    """Describe in one line the examples that runs train on and are measured on; "" without runs.

    Args:
        runs: (label, the domain left out or "", partition) of each run; labels are named where the runs differ.
        groups: as of `describe_measurement`; "unseen" is all domains that a run's clients do not have.
    """
    runs_of_text: dict[str, list[tuple[str, str]]] = {}
    for label, left_out, partition in runs:
        own_groups = [each for group in groups for each in _expand_unseen(partition, group)]
        parts = [f"{group}: {describe_measurement(partition, group)}" for group in own_groups]
        if len(own_groups) == 1:
            parts = [f"measured on {describe_measurement(partition, *own_groups)}"]
        text = "; ".join([f"trained on {describe_training(partition)}", *parts])
        runs_of_text.setdefault(text, []).append((label, left_out))
    if len(runs_of_text) <= 1:
        return "".join(f"{text[0].upper()}{text[1:]}." for text in runs_of_text)
    names = _distinct_names(list(runs_of_text.values()))
    return " ".join(f"{name}: {text}." for name, text in zip(names, runs_of_text, strict=True))


def _expand_unseen(partition: Partition, group: str) -> list[str]:
    if group == "domains":  # statistics over unseen domains
        return []
    return [f"unseen/{name}" for name in partition.get("unseen") or {}] if group == "unseen" else [group]


def _distinct_names(sets: Sequence[Sequence[tuple[str, str]]]) -> list[str]:
    """Name each set of (label, domain left out) by the domains, by the labels, or by both, whatever is distinct."""
    both: Callable[[tuple[str, str]], str] = lambda run: f"{run[0]} without {run[1]}" if run[1] else run[0]  # noqa: E731
    for name in (lambda run: f"without {run[1]}", lambda run: run[0], both):
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
