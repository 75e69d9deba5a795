"""Sub-networks of different depths: DepthFL."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het.client.depths import last_exit_losses, mutual_losses
from fedjax_het.server.aggregators import masked_mean
from tests.golden.cases import Case, covers
from tests.views import server_view


@covers("depthfl", "loss_*")
def losses_of_depthfl(case: Case):
    weight = case["consistency_weight"]
    np.testing.assert_allclose(np.exp(-5 * (1 - min(case.meta["round"], 300) / 300) ** 2), weight, rtol=1e-12)
    yield from compare_losses(case, partial(mutual_losses, weight=weight))


@covers("depthfl", "agg_*")
def leaves_of_the_clients_that_have_them(case: Case):
    """Client i has the leaves before depth[i]; with FedDyn the server's rule is another one."""
    depths, leaves = case["depth"], range(4)
    received = {f"{i}": jnp.asarray(case[f"origin_{i}"]) for i in leaves}
    updates = {f"{i}": np.nan_to_num(case[f"clients_{i}"] - case[f"origin_{i}"]) for i in leaves}
    masks = {name: mask_per_axis(int(name) < depths, leaf.ndim) for name, leaf in received.items()}
    view = server_view(len(depths), {"mask": masks}, {"params": updates}, {"params": received})
    update = masked_mean("uniform").update(None, (), view)[0].update["params"]
    for i in leaves:
        if case.meta["is_weight"][i] and case.meta["feddyn"]:
            case.excuse(f"out_{i}", "FedDyn's step of the server, which depthfl leaves out")
        else:
            yield case.compare(f"out_{i}", received[f"{i}"] + update[f"{i}"])
    case.excuse("h_*", "FedDyn's state of the server, which depthfl leaves out")
    case.excuse("n_clients", "FedDyn's")
    case.meta.confirm(alpha=0.1)


@covers("depthfl", "scalefl_*")
def losses_of_scalefl(case: Case):
    weight = case.meta["gamma"] * case.meta["distillation_active"]
    yield from compare_losses(case, partial(last_exit_losses, weight=weight, temperature=case.meta["T"]))


def compare_losses(case: Case, losses: Callable):
    logits, labels = jnp.asarray(case["logits"]), jnp.asarray(case["labels"])
    loss, gradient = jax.value_and_grad(lambda z: jnp.mean(losses(z, labels, len(z))))(logits)
    yield case.compare("loss", loss)
    yield case.compare("grad", gradient)


def mask_per_axis(mask: np.ndarray, num_axes: int) -> tuple[np.ndarray, ...]:
    """[clients] as one mask [clients, 1] per axis."""
    return tuple((mask if axis == 0 else np.ones_like(mask))[:, None] for axis in range(num_axes))
