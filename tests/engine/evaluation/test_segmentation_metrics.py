"""Hard Dice and intersection over union."""

import numpy as np
import pytest

from fedjax_het.engine.evaluation.segmentation_metrics import overlap_metrics

TRUTH = np.array([[[0, 0], [1, 1]]])


def scores(predicted, truth=TRUTH, num_classes=2):
    return {name: float(value[0]) for name, value in overlap_metrics(np.array([predicted]), truth, num_classes).items()}


def test_dice_and_iou_with_one_missed_pixel_match_the_definitions():
    """Class 0: 2 of 2 + 3, class 1: 1 of 2 + 1."""
    found = scores([[0, 0], [0, 1]])
    assert found["dice"] == pytest.approx((4 / 5 + 2 / 3) / 2)
    assert found["dice_foreground"] == pytest.approx(2 / 3)
    assert found["iou"] == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert found["iou_foreground"] == pytest.approx(1 / 2)


def test_a_perfect_mask_scores_one_and_a_class_absent_from_both_zero():
    assert set(scores([[0, 0], [1, 1]]).values()) == {1.0}
    assert scores([[0, 0], [1, 1]], num_classes=3)["dice"] == pytest.approx(2 / 3)
    empty = np.zeros((1, 2, 2), int)
    assert scores([[0, 0], [0, 0]], empty) == {"dice": 0.5, "iou": 0.5, "dice_foreground": 0.0, "iou_foreground": 0.0}


def test_each_image_is_scored_on_its_own():
    predicted = np.stack([TRUTH[0], 1 - TRUTH[0]])
    found = overlap_metrics(predicted, np.repeat(TRUTH, 2, axis=0), 2)
    np.testing.assert_allclose(found["dice"], [1, 0])
    np.testing.assert_allclose(found["iou_foreground"], [1, 0])
