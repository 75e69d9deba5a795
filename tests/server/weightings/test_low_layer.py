import jax
import numpy as np
import pytest

from fedjax_het import models
from fedjax_het.errors import InputError
from fedjax_het.server.weightings._parameter_guided import low_layer


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
    return jax.eval_shape(model.init, jax.random.key(0), np.zeros((1, *shape), np.float32))


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
def test_by_default_it_is_the_first_layer_or_the_end_of_the_first_stage(shared, expected):
    assert low_layer(shared) == expected


def test_names_of_pytorch():
    names = ("conv1", "layer1.0.conv1", "layer1.1.conv2", "layer1.1.bn2", "layer10.0.conv1", "layer2.0.conv1")
    params = {f"{name}.weight": np.zeros((2, 2, 3, 3) if "conv" in name else 2) for name in names}
    assert low_layer({"params": params}) == "params/layer1.1.conv2.weight"
    assert low_layer({"params": params}, "layer2.0.conv1.weight") == "params/layer2.0.conv1.weight"


@pytest.mark.parametrize("name", ["params/dense_1/kernel", "dense_1/kernel", "dense_1", "params/dense_1"])
def test_a_layer_has_several_names(name):
    assert low_layer(initial(models.mlp(3, (8, 8)), (4,)), name) == "params/dense_1/kernel"


@pytest.mark.parametrize("name", ["dense", "dense_1/bias", "params/dens_1/kernel"])
def test_a_layer_that_is_not_there(name):
    with pytest.raises(InputError, match=r"layer: .*Known: params/classifier/kernel, params/dense_0/kernel"):
        low_layer(initial(models.mlp(3, (8, 8)), (4,)), name)


def test_no_weight_is_shared():
    with pytest.raises(InputError, match="no weight of at least two axes is shared"):
        low_layer({"params": {"scale": np.zeros(3)}})
