"""The cost of communication of clients that train parts of the model."""

import numpy as np
import pytest

from fedjax_het import models, uplink
from tests.harness import compose, traffic


@pytest.mark.parametrize(
    ("name", "options", "widths"),
    [
        ("heterofl", {"widths": (0.5,)}, [4]),
        ("fedrolex", {"widths": (1.0, 0.5, 0.25)}, [8, 4, 2, 8, 4]),
        ("fjord", {"widths": (0.25, 1.0)}, [2, 8, 2, 8, 2]),
        ("heterofl", {"widths": (1.0, 0.5, 0.25), "assignment": "dynamic"}, [8, 4, 2]),
    ],
)
def test_traffic_is_the_mean_size_of_the_sub_networks(name, options, widths):
    down, bits = traffic(compose(name, network=models.mlp(3, (8,)), options=options))
    entries = np.mean([36 * units + units + 3 * units + 3 for units in widths])
    assert down == np.ceil(4 * entries + 4)  # and the round's number
    assert bits / 8 == pytest.approx(4 * entries + 8)  # and the counts of examples and steps, but no mask


def test_stages_of_the_uplink_encode_the_entries_of_the_whole_model():
    change = {"uplink": (uplink.sign(scaled=False),)}
    _, bits = traffic(compose("heterofl", network=models.mlp(3, (8,)), options={"widths": (0.5,)}, change=change))
    assert bits == 36 * 8 + 8 + 8 * 3 + 3 + 8 * 8


def test_traffic_has_the_layers_and_exits_of_each_client():
    first, second = 36 * 8 + 8 + 8 * 3 + 3, 8 * 6 + 6 + 6 * 3 + 3
    down, bits = traffic(compose("depthfl", network=models.mlp(3, (8, 6, 5)), options={"depths": (1, 2)}))
    entries = first + second * 2 / 5  # two of five clients have two exits
    assert down == np.ceil(4 * entries + 4)
    assert bits / 8 == pytest.approx(4 * entries + 8)
