"""Data that change with the round: schedules, changes of examples, task sequences, and statistics of phases."""

from collections.abc import Iterator

import numpy as np

from fedjax_het.data import Concept, assemble, drift, federate, iid
from fedjax_het.data.concept import stack_concepts, swap_classes
from fedjax_het.data.drift import divide_tasks
from fedjax_het.data.exemplars import herd, normalize
from fedjax_het.data.patterns import Pattern, alternate, ramp, switch
from fedjax_het.data.sources._points import label_points
from fedjax_het.engine import continual_statistics, drift_statistics
from fedjax_het.types import Examples
from tests.golden.cases import Case, Comparison, covers


@covers("drift", "schedule_*")
def schedules(case: Case) -> Iterator[Comparison]:
    meta, (steps, _) = case.meta, case["mix"].shape
    patterns: dict[str, Pattern] = {"sudden": switch()}
    if meta["schedule"] == "incremental":
        patterns["incremental"] = ramp(meta["width"])
    if meta["schedule"] == "recurring":
        patterns["recurring"] = alternate(meta["period"], repeats=steps)
    assert (meta["steps"] == steps and np.all(case["start"] == np.asarray(meta["start"]))) or "start" not in meta
    share = patterns[meta["schedule"]].share(np.arange(steps)[:, None] - case["start"].astype(int))
    yield case.compare("mix", share)
    yield case.compare("concept", share >= 0.5)


def examples_of(labels: np.ndarray, num_classes: int, **changes) -> Examples:
    """Examples with these labels [n], and concept 1 that changes them."""
    inputs = np.zeros((len(labels), 1), np.float32)
    concepts = stack_concepts([Concept(), Concept(**changes)], inputs, labels, num_classes, seed=0)
    return Examples(inputs, labels.astype(np.int32), concepts=concepts)


@covers("drift", "label_swap_0")
def swapped_labels(case: Case) -> Iterator[Comparison]:
    labels, classes = case["Y"].ravel(), int(case["classes"])
    order = swap_classes(case["pairs"].tolist(), classes)
    yield case.compare("permutation", np.array(order))
    concept = np.repeat(case["concept"], case["Y"].shape[1])
    changed = examples_of(labels, classes, classes=order).read_labels(concept * len(labels) + np.arange(len(labels)))
    yield case.compare("out", np.asarray(changed).reshape(case["Y"].shape))


@covers("drift", "label_swap_1_mix")
def partly_swapped_labels(case: Case) -> Iterator[Comparison]:
    """An entry has the new concept where its number is below the share, as in `drift.replace_concept`."""
    labels, order = case["Y"].ravel(), tuple(case["permutation"].tolist())
    num_clients, per_client = case["Y"].shape
    entries = drift.Entries(
        clients=np.repeat(np.arange(num_clients), per_client),
        positions=np.arange(len(labels)),
        labels=labels,
        domains=np.zeros(len(labels), int),
        uniform=case["uniform"].ravel(),
        is_train=np.ones(len(labels), bool),
        read_inputs=lambda chosen: np.zeros((len(chosen), 1)),
        num_clients=num_clients,
        num_classes=len(order),
        num_domains=1,
    )
    pattern = Pattern(lambda elapsed: case["mix"], (0,))
    kinds = (Concept(), Concept(classes=order))
    timeline = drift.replace_concept(pattern, 1, 0, 1.0, kinds)(entries, np.random.default_rng(0))
    changed = examples_of(labels, len(order), classes=order)
    out = changed.read_labels(timeline.concept(1) * len(labels) + np.arange(len(labels)))
    yield case.compare("out", np.asarray(out).reshape(case["Y"].shape))


@covers("drift", "rotation_points")
def rotated_points(case: Case) -> Iterator[Comparison]:
    points, angles = case["X"], case["angles_degrees"]
    concepts = [Concept(degrees=float(angle)) for angle in angles]
    stacked = stack_concepts(concepts, points.astype(np.float32), np.zeros(len(points), int), 2, seed=0)
    examples = Examples(points, np.zeros(len(points), np.int32), concepts=stacked)
    index = np.arange(len(angles) * len(points))
    yield case.compare("out", np.asarray(examples.read(index)[0]).reshape(case["out"].shape))


@covers("drift", "feddrift_changepoints")
def change_points(case: Case) -> Iterator[Comparison]:
    """The concept that the examples of each client have in each phase."""
    for name in case.matching("concept_*"):
        table, num = case[name], 40
        dataset = assemble("x", np.zeros((num, 2), np.float32), np.arange(num) % 2, class_names="ab")
        concepts = [Concept(flips=number / 10) for number in range(1 + table.max())]
        rule = drift.table(tuple(map(tuple, table.tolist())), 5, concepts=concepts)
        federation = federate(dataset, iid(), table.shape[1], test_fraction=0, drift=rule)
        rows = [federation.in_round(5 * phase).data.train for phase in range(len(table))]
        yield case.compare(name, np.stack([index[:, 0] // num for index, _ in rows]))


@covers("drift", "feddrift_toy_concepts")
def toy_concepts(case: Case) -> Iterator[Comparison]:
    for name in case.matching("*_concept?"):
        kind, number = name.split("_concept")
        points = case[name]
        yield case.compare(name, np.column_stack([points[:, :2], label_points(kind, int(number), points[:, :2])]))


@covers("drift", "metrics_*")
def recovery(case: Case) -> Iterator[Comparison]:
    accuracy, step = case["accuracy"], int(case["drift_step"])
    yield case.compare("mean_over_time", accuracy.mean())
    yield case.compare("drop", drift_statistics(accuracy.mean(axis=1), step)["drop"])
    yield case.compare("recovery_95", drift_statistics(accuracy, step)["recovery"])


# ---- continual -------------------------------------------------------------------------------------------------------
@covers("continual", "metrics_*")
def statistics(case: Case) -> Iterator[Comparison]:
    ours = continual_statistics(case["accuracy"], case["random_accuracy"], case["test_examples"])
    for name, values in ours.items():
        yield case.compare(name, values)
    yield case.compare("forgetting_from_learned", -ours["backward_transfer"])
    if len(case["accuracy"]) > 1:
        yield case.refute("x_wrong_forgetting_with_last", ours["forgetting"])
    else:
        case.excuse("x_wrong_forgetting_with_last", "undefined for one task, as the right one")


@covers("continual", "metrics_4_clients")
def statistics_of_clients(case: Case) -> Iterator[Comparison]:
    own = continual_statistics(case["accuracy"])
    yield case.compare("forgetting", own["forgetting"])
    yield case.compare("forgetting_mean_clients", own["forgetting"].mean(axis=0))
    of_mean = continual_statistics(case["accuracy"].mean(axis=0))
    yield case.compare("forgetting_of_mean", of_mean["forgetting"])
    yield case.compare("average_accuracy_mean", of_mean["average_accuracy"])


@covers("continual", "tasks_*")
def tasks(case: Case) -> Iterator[Comparison]:
    task = divide_tasks(case["order"], case.meta["tasks"])
    assert case.meta["classes"] == len(task)
    yield case.compare("task_of_class", task)
    yield case.compare("classes_seen", np.cumsum(np.bincount(task)))


@covers("continual", "herding_*")
def herding(case: Case) -> Iterator[Comparison]:
    yield case.compare("normalised", normalize(case["features"]))
    yield case.compare("chosen", herd(case["features"], len(case["chosen"])))
