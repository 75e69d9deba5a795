import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het.client.memories import previous_models
from fedjax_het.errors import InputError
from fedjax_het.types import ClientView


def remember(size, rounds, first="none"):
    memory = previous_models(size, first)
    kept = memory.init({"params": {"w": jnp.full(2, -1.0)}})
    for number in range(rounds):
        local = {"params": {"w": jnp.full(2, float(number))}}
        kept = memory.update(None, ClientView(None, {"previous": kept}, {}, None, {}, local, (), {}, None))
    return int(kept["count"]), np.asarray(kept["models"]["params"]["w"])[:, 0].tolist()


def test_the_last_models_are_kept_newest_first():
    assert remember(1, 0) == (0, [-1])
    assert remember(1, 3) == (1, [2])
    assert remember(2, 1) == (1, [0, -1])
    assert remember(2, 3) == (2, [2, 1])


def test_the_initial_model_can_be_the_first_previous_model():
    assert remember(2, 0, "init") == (1, [-1, -1])
    assert remember(2, 1, "init") == (2, [0, -1])
    assert remember(2, 2, "init") == (2, [1, 0])


def test_settings_out_of_range_are_refused():
    with pytest.raises(InputError, match="size: must be a whole number from 1"):
        previous_models(0)
    with pytest.raises(InputError, match="first: unknown option 'initial'"):
        previous_models(1, "initial")
