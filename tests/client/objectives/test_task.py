"""Replacement of an algorithm's task loss."""

import pytest

from fedjax_het.client.objectives import cross_entropy, focal, margin, with_task_loss
from fedjax_het.errors import InputError


def names(objective):
    return [term.__name__ for term in objective]


def test_the_task_loss_replaces_cross_entropy_and_keeps_the_other_terms():
    assert names(with_task_loss((cross_entropy(), margin(0.1)), "dice")) == ["dice", "margin"]
    assert names(with_task_loss((margin(0.1), cross_entropy()), "joint")) == ["margin", "cross_entropy", "dice"]


def test_the_loss_of_the_kind_of_labels_keeps_the_same_objective():
    objective = (cross_entropy(), focal())
    assert with_task_loss(objective, "auto") is objective


def test_an_algorithm_with_its_own_loss_refuses_another():
    with pytest.raises(InputError, match=r"'dice' cannot replace.*focal"):
        with_task_loss((focal(),), "dice")


def test_an_unknown_loss_is_refused_with_the_nearest():
    with pytest.raises(InputError, match=r"'dise'.*'dice'"):
        with_task_loss((cross_entropy(),), "dise")
