"""FedRD's weights, and the low layer that they are measured by."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedjax_het import models, sharing
from fedjax_het._internal.keys import make_key
from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.errors import InputError
from fedjax_het.server.weightings import parameter_guided
from fedjax_het.server.weightings._parameter_guided import guided_weights, low_layer
from fedjax_het.types import Broadcast, ServerView, Upload
from tests.harness import compose, federation

clients = st.lists(st.tuples(st.floats(0.01, 10), st.floats(-5, 5), st.booleans()), min_size=2, max_size=7)


def weigh(distances, gaps, is_present=None, **options) -> np.ndarray:
    is_present = np.ones(len(gaps), bool) if is_present is None else is_present
    return np.asarray(guided_weights(*map(jnp.asarray, (distances, gaps, is_present)), **options))


def view(start, changes, gaps) -> ServerView:
    num_clients = len(gaps)
    upload = Upload({}, {"gap": jnp.asarray(gaps)}, jnp.ones(num_clients), None)
    received = Broadcast(jnp.zeros((), int), {"params": {"conv": jnp.asarray(start)}}, {})
    updates = StackedUpdates({"params": {"conv": jnp.asarray(changes)}})
    return ServerView(received, upload, jnp.arange(num_clients), jnp.ones(num_clients, bool), num_clients, updates)


@pytest.mark.slow
@given(clients=clients, seed=st.integers(0, 5), factor=st.floats(0.1, 10))
@settings(deadline=None, max_examples=40)
def test_weights_are_shares_of_present_clients(clients, seed, factor):
    distances, gaps, present = (np.array(column) for column in zip(*clients, strict=True))
    weights, num = weigh(distances, gaps, present), present.sum()
    assert np.all(weights[~present] == 0)
    assert weights.sum() == pytest.approx(1.0 if num else 0.0, abs=1e-5)
    if num > 1:
        assert np.all(weights[present] > 0) and np.all(weights <= 0.5 / (num - 1) + 0.5 + 1e-6)
    order = np.random.default_rng(seed).permutation(len(gaps))
    np.testing.assert_allclose(weigh(distances[order], gaps[order], present[order]), weights[order], rtol=1e-4)
    np.testing.assert_allclose(weigh(factor * distances, gaps, present), weights, rtol=1e-4)


def test_weights_of_two_clients_match_those_computed_by_hand():
    gammas = 1 / (1 + np.exp([-0.3, 0.1]))
    expected = 0.5 * ((1 - 0.25) + gammas[0] / gammas.sum())
    np.testing.assert_allclose(weigh([1.0, 3.0], [0.3, -0.1]), [expected, 1 - expected], rtol=1e-6)


def test_a_single_present_client_has_all_the_weight():
    np.testing.assert_array_equal(weigh([0.0, 2.0], [3.0, -1.0], [False, True]), [0, 1])


def test_a_smaller_distance_and_a_larger_gap_increase_the_weight():
    near, far = weigh([1.0, 2.0], [0.0, 0.0])
    badly, well = weigh([1.0, 1.0], [0.5, 0.0])
    assert near > far and badly > well


@pytest.mark.parametrize("gap", [0.0, 50.0, -50.0, -800.0])
def test_identical_clients_have_equal_weights_even_where_gammas_underflow(gap):
    np.testing.assert_allclose(weigh([0.0] * 4, [gap] * 4), [0.25] * 4)


def test_the_extra_model_of_the_released_code_reduces_the_sum_of_weights():
    assert weigh([1.0, 2.0, 3.0], [0.1, 0.2, 0.3], official_n_extra=1).sum() == pytest.approx(5 / 6)


def test_the_cosine_distance_depends_on_directions_only():
    start = np.array([[1.0, 0.0], [0.0, 0.0]])
    changes = np.stack([2 * start, np.array([[-1.0, 1.0], [0.0, 0.0]])])  # longer; turned by a right angle
    weights, _ = parameter_guided("conv", "cosine").update((), view(start, changes, [0.0, 0.0]))
    np.testing.assert_allclose(weights, [0.75, 0.25], rtol=1e-6)


def test_a_zero_layer_has_equal_cosine_distances():
    weights, _ = parameter_guided("conv", "cosine").update((), view(np.zeros((2, 2)), np.ones((2, 2, 2)), [0.0, 0.0]))
    np.testing.assert_allclose(weights, [0.5, 0.5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"distance": "cosin"}, "distance: unknown option 'cosin'. Did you mean 'cosine'"),
        ({"official_n_extra": -1}, "official_n_extra: must be a whole number"),
        ({"official_n_extra": 0.5}, "official_n_extra: must be a whole number"),
    ],
)
def test_invalid_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        parameter_guided(**options)


@pytest.mark.parametrize("change", [{}, {"sharing": sharing.personal("params/dense_0/*")}])
def test_a_layer_that_is_not_shared_is_refused_at_initialization(change):
    name = "dense_0" if change else "dens_0/kernel"
    round = compose("fedrd", options={"layer": name}, change=change)
    with pytest.raises(InputError, match=rf"layer: '{name}' is not a weight that the clients share.*params/classifier"):
        jax.eval_shape(round.init, make_key(0), federation().data)


def variables(**shapes) -> dict:
    """A convolution [3, 3, a, b] or a dense layer [a, b] for each entry, with a bias."""
    layers = {}
    for path, shape in shapes.items():
        *above, name = path.split("__")
        place = layers
        for module in above:
            place = place.setdefault(module, {})
        place[name] = {"kernel": np.zeros(shape), "bias": np.zeros(shape[-1])}
    return {"params": layers, "batch_stats": {"norm_0": {"mean": np.zeros((2, 2, 2))}}}


def initial(model, shape) -> dict:
    return jax.eval_shape(model.init, make_key(0), np.zeros((1, *shape), np.float32))


@pytest.mark.parametrize(
    ("shared", "expected"),
    [
        (initial(models.mlp(3, (8, 8), norm="batch"), (4,)), "params/dense_0/kernel"),
        (initial(models.mlp(3, ()), (4,)), "params/classifier/kernel"),
        (initial(models.cnn(3, norm="batch", width=0.1), (12, 12, 1)), "params/conv_0/kernel"),
        (initial(models.lenet(3, width=0.5), (32, 32, 3)), "params/conv_0/kernel"),
        (variables(block=(3, 3, 8, 8), stem=(3, 3, 3, 8), dense=(4, 4)), "params/stem/kernel"),
        (variables(dense_10=(4, 4), dense_2=(4, 4), classifier=(4, 3)), "params/dense_2/kernel"),
        (
            variables(
                conv=(7, 7, 3, 8),
                stage_0__block_0__conv_1=(3, 3, 8, 8),
                stage_0__block_1__conv_1=(3, 3, 8, 8),
                stage_0__block_1__shortcut=(1, 1, 8, 8),
                stage_1__block_0__conv_0=(3, 3, 8, 8),
            ),
            "params/stage_0/block_1/conv_1/kernel",
        ),
    ],
)
def test_the_default_low_layer_is_the_first_layer_or_the_end_of_the_first_stage(shared, expected):
    assert low_layer(shared) == expected


def test_low_layer_accepts_names_of_pytorch():
    names = ("conv1", "layer1.0.conv1", "layer1.1.conv2", "layer1.1.bn2", "layer10.0.conv1", "layer2.0.conv1")
    params = {f"{name}.weight": np.zeros((2, 2, 3, 3) if "conv" in name else 2) for name in names}
    assert low_layer({"params": params}) == "params/layer1.1.conv2.weight"
    assert low_layer({"params": params}, "layer2.0.conv1.weight") == "params/layer2.0.conv1.weight"


@pytest.mark.parametrize("name", ["params/dense_1/kernel", "dense_1/kernel", "dense_1", "params/dense_1"])
def test_low_layer_accepts_several_forms_of_a_name(name):
    assert low_layer(initial(models.mlp(3, (8, 8)), (4,)), name) == "params/dense_1/kernel"


@pytest.mark.parametrize("name", ["dense", "dense_1/bias", "params/dens_1/kernel"])
def test_an_unknown_layer_is_refused_with_the_known_ones(name):
    with pytest.raises(InputError, match=r"layer: .*Known: params/classifier/kernel, params/dense_0/kernel"):
        low_layer(initial(models.mlp(3, (8, 8)), (4,)), name)


def test_low_layer_refuses_a_model_without_shared_weights():
    with pytest.raises(InputError, match="no weight with at least two axes is shared"):
        low_layer({"params": {"scale": np.zeros(3)}})
