"""Who has what: training examples by client and class."""

from collections.abc import Sequence

import numpy as np

from .figures import Figure, Heat, Panel, View
from .rows import Row

_CAPTION = (
    "What each client (across) has of each class (down) to train on, newcomers last; one map for rows that share a "
    "partition. As shares of what the client has, small clients can be read too."
)


def figure(rows: Sequence[Row], counted: str) -> Figure | None:
    """A panel for every partition that there is. counted: what the numbers are of, "examples", or "pixels" of masks."""
    sharing: dict[str, list[Row]] = {}
    partitions = {}
    for row in rows:
        for run in row.runs:
            if run.partition:
                partitions[run.partition["fingerprint"]] = run.partition
                sharing.setdefault(run.partition["fingerprint"], []).append(row)
    if not partitions:
        return None
    views = {counted: [], "shares": []}
    for fingerprint, partition in partitions.items():
        labels = tuple(dict.fromkeys(row.label for row in sharing[fingerprint]))
        title = "all runs" if len(partitions) == 1 else ", ".join(labels)
        clients = partition["clients"]
        counts = np.array([list(client["classes"].values()) for client in clients], float).T
        shares = counts / np.maximum(counts.sum(axis=0), 1)
        names, classes = [client["client"] for client in clients], list(clients[0]["classes"])
        for view, z, unit in ((counted, counts, counted), ("shares", shares, "share")):
            heat = Heat(names, classes, z.tolist(), "amount", unit)
            views[view].append(Panel(title, "client", "class", [heat], is_wide=True, rows=labels))
    return Figure("partition", "Who has which classes", _CAPTION, [View(*each) for each in views.items()])
