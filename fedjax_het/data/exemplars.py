"""Exemplars: the few examples of earlier tasks that clients keep."""

import numpy as np
from jaxtyping import Bool, Float, Int

from fedjax_het.data.timeline import Entries


def choose_exemplars(
    entries: Entries, groups: Int[np.ndarray, "entries"], number: int, is_herding: bool
) -> Bool[np.ndarray, "entries"]:
    """Choose training examples of each client and group.

    Args:
        entries: The examples of clients.
        groups: The group of each example.
        number: The largest number of each client and group.
        is_herding: Whether they are chosen by `herd` on stored inputs, possibly some twice, instead of at random.
    """
    chosen = np.zeros(len(groups), bool)
    if not number:
        return chosen
    group_of = np.where(entries.is_train, entries.clients * (1 + groups.max()) + groups, -1)
    for group in np.unique(group_of[entries.is_train]):
        own = np.flatnonzero(group_of == group)
        if is_herding:
            features = entries.read_inputs(entries.positions[own]).reshape(len(own), -1)
            chosen[own[herd(features, number)]] = True
        else:
            chosen[own[np.argsort(entries.uniform[own])[:number]]] = True
    return chosen


def herd(features: Float[np.ndarray, "examples feature"], number: int) -> Int[np.ndarray, "chosen"]:
    """Choose examples one by one so that the mean of the chosen stays close to that of all (herding).

        p_k = argmin_i | mu - (f_i + sum_{l<k} f_{p_l}) / k |,   mu = mean_i f_i,   |f_i| = 1

    As in GLFC's code, features are normalized and their mean is not, and an example may be chosen again.

    Args:
        features: The features of the examples; a feature vector of length 0 stays 0.
        number: The number of choices.

    Returns:
        The positions of the chosen examples, in order.

    References:
        Rebuffi et al., iCaRL, CVPR 2017. Dong et al., Federated Class-Incremental Learning, CVPR 2022; code
        conditionWang/FCIL, src/GLFC.py.
    """
    features = normalize(features)
    mean, total, chosen = features.mean(axis=0), np.zeros(features.shape[1]), []
    for count in range(1, number + 1):
        chosen.append(int(np.argmin(np.linalg.norm(mean - (features + total) / count, axis=1))))
        total = total + features[chosen[-1]]
    return np.array(chosen, np.int32)


def normalize(features: Float[np.ndarray, "examples feature"]) -> Float[np.ndarray, "examples feature"]:
    """The features with Euclidean length 1."""
    features = np.asarray(features, np.float64)
    length = np.linalg.norm(features, axis=1, keepdims=True)
    return features / np.where(length > 0, length, 1)
