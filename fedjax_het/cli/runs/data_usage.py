"""The groups of figures of a run, and descriptions of the examples that it trains on and that each is measured on.

The examples are described from the records of partition.json (`records.describe_partition`).
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple


class Group(NamedTuple):
    """A group of figures in metrics.jsonl: "clients" of clients/accuracy_mean."""

    title: str  # of a column or a panel
    description: str = ""  # the model and the examples


GROUPS = {
    "test": Group("test set", "the server's model on the common test set"),
    "clients": Group("clients", "the server's model on each client's own test examples"),
    "personal": Group("own models", "each client's own model on its own test examples"),
    "personal_test": Group("own models on the test set", "each client's own model on the common test set"),
    "newcomers": Group("newcomers"),
    "valid": Group("clients, validation"),
    "train": Group("training"),
    "unseen": Group("unseen", "the server's model on the domain left out"),
}
CLIENT_GROUPS = ("clients", "personal", "personal_test")
"""The groups with a score for each client."""

Partition = Mapping[str, Any]
NOT_MEASURED = "not measured: no client holds examples out (set data.client_test_fraction=0.2 to do so)"
_OWN_MODELS = ("personal", "personal_test", "personal_valid")
_RANDOM = "held out at random"
_MAX_STARTS = 8  # of phases that are listed


def describe_training(partition: Partition) -> str:
    """Describe how many examples are trained on, and by how many clients."""
    clients = _clients(partition)
    counts = [client["train"] for client in clients]
    low, high = min(counts, default=0), max(counts, default=0)
    per_client = f"{low:,}" if low == high else f"{low:,} to {high:,}"
    sums = {noun: sum(client[split] for client in clients) for split, noun in _NOUNS.items()}
    held_out = " and ".join(f"{num:,} for {noun}" for noun, num in sums.items() if num)
    text = f"{sum(counts):,} examples of {_format_number_of_clients(clients)} ({per_client} each)"
    return f"{text}, {held_out or 'none'} of theirs held out"


_NOUNS = {"valid": "validation", "test": "test"}


def describe_measurement(partition: Partition, group: str) -> str:
    """Describe the examples that a group of figures, "clients" or "unseen/sketch", is measured on."""
    kind, _, name = group.partition("/")
    if kind == "unseen":
        return f"{name}, a domain that no client has: {partition['unseen'][name]:,} examples"
    if kind == "phases":
        return "each client's own test examples, as they are in each phase"
    if kind == "domains":
        return "the domains that no client has, each by itself"
    if kind in ("test", "personal_test"):
        num, fraction = partition["test"] or 0, partition["fractions"]["test"]
        text, held_out = f"{num:,} examples", f"{_RANDOM} before clients got theirs"
    else:
        split = "valid" if kind in ("valid", "personal_valid") else "test"
        clients = _clients(partition, is_newcomer=kind == "newcomers")
        num, fraction = sum(client[split] for client in clients), partition["fractions"][f"client_{split}"]
        if kind == "newcomers":
            return f"{num:,} examples of {_format_number_of_clients(clients)} that never train"
        text, held_out = f"each client's own {_NOUNS[split]} examples: {num:,} in all", f"of each client's, {_RANDOM}"
    if not num:
        return "no examples"
    if fraction is None:
        return f"{text}, the data set's own {_NOUNS['valid' if 'valid' in kind else 'test']} split"
    return f"{text}, {100 * fraction:.4g} %{' ' if held_out.startswith('of') else ', '}{held_out}"


def measured_groups(partition: Partition, has_personal: bool, is_personal_on_test: bool) -> list[str]:
    """List the groups of figures that a run will have.

    Args:
        partition: the record of partition.json.
        has_personal: whether a part of the model is personal to each client.
        is_personal_on_test: whether own models are measured on the common test set, too.
    """
    clients, newcomers = _clients(partition), _clients(partition, is_newcomer=True)
    has_test, has_valid = (any(client[split] for client in clients) for split in ("test", "valid"))
    is_measured = {
        "test": partition["test"] is not None,
        "clients": has_test,
        "personal": has_test and has_personal,
        "personal_test": has_personal and is_personal_on_test,
        "valid": has_valid,
        "personal_valid": has_valid and has_personal,
        "newcomers": any(client["test"] for client in newcomers),
        **{f"unseen/{name}": True for name in partition["unseen"]},
        "domains": len(partition["unseen"]) > 1,
    }
    return [group for group, is_present in is_measured.items() if is_present]


def find_figures(names: Iterable[str], *kinds: str) -> list[tuple[str, str, str]]:
    """Return (name, title of its group, kind), group by group, of the scores and losses of these kinds.

    Args:
        names: the names of figures in metrics.jsonl.
        *kinds: "accuracy", "loss", ...; in groups of clients, the mean over clients.
    """
    groups = {name.rpartition("/")[0]: None for name in names}
    unseen = {group: f"unseen {group.partition('/')[2]}" for group in groups if group.startswith("unseen/")}
    titles = unseen | {name: group.title for name, group in GROUPS.items()}
    found = [(f"{group}/{kind}", title, kind) for group, title in titles.items() for kind in kinds]
    return [(name + over, title, kind) for name, title, kind in found for over in ("", "_mean") if name + over in names]


def groups_of(figures: Iterable[str]) -> list[str]:
    """List the groups that figures by these names belong to: "unseen/sketch" for "unseen/sketch/accuracy"."""
    groups = dict.fromkeys(name.rpartition("/")[0] for name in figures)
    return [name for name in groups if name not in ("", "train", "traffic")]


def describe_groups(partition: Partition, groups: Sequence[str]) -> dict[str, str]:
    """Describe the training examples, and the model and examples of each group, and of "clients" in any case."""
    rows = {"trains on": describe_training(partition)}
    if "phases" in partition:
        starts = partition["phases"]["starts"]
        listed = ", ".join(map(str, starts[:_MAX_STARTS])) + ", ..." * (len(starts) > _MAX_STARTS)
        rows["phases"] = f"{len(starts)}, from rounds {listed} on; numbers of examples are those of the first phase"
    for group in groups:
        model = "each client's own model" if group in _OWN_MODELS else "the server's model"
        rows[f"{group}/"] = f"{model} on {describe_measurement(partition, group)}"
    return rows if "clients" in groups else rows | {"clients/": NOT_MEASURED}


def describe_runs(runs: Sequence[tuple[str, str, Partition | None]], groups: Sequence[str]) -> str:
    """Describe in one line the examples that runs train on and are measured on; "" without runs.

    Args:
        runs: (label, the domain left out or "", partition or None) of each run; they are named where runs differ.
        groups: see `describe_measurement`; "unseen" is all domains that a run's clients do not have.
    """
    names_of_text: dict[str, dict[str, None]] = {}
    for label, left_out, partition in runs:
        if partition is None:
            continue
        own_groups = [f"unseen/{name}" for name in partition["unseen"]] if "unseen" in groups else []
        own_groups += [group for group in groups if group not in ("unseen", "domains")]
        parts = [f"{group}: {describe_measurement(partition, group)}" for group in own_groups]
        if len(own_groups) == 1:
            parts = [f"measured on {describe_measurement(partition, *own_groups)}"]
        text = "; ".join([f"trained on {describe_training(partition)}", *parts])
        names_of_text.setdefault(text, {})[f"{label} without {left_out}" if left_out else label] = None
    if len(names_of_text) == 1:
        return "".join(f"{text[0].upper()}{text[1:]}." for text in names_of_text)
    return " ".join(f"{', '.join(names)}: {text}." for text, names in names_of_text.items())


def _clients(partition: Partition, is_newcomer: bool = False) -> list[Mapping[str, Any]]:
    return [client for client in partition["clients"] if client["is_newcomer"] == is_newcomer]


def _format_number_of_clients(clients: Sequence[Any]) -> str:
    return f"{len(clients):,} client{'s' * (len(clients) != 1)}"
