"""Staying near where the round began."""

import jax

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, ForwardPass
from fedjax_het.validation import NonNegative, validate_arguments

FORMS = {
    "squared": lambda distance, mu: 0.5 * mu * tree.squared_norm(distance),
    "norm_per_tensor": lambda distance, mu: mu * sum(map(tree.norm, jax.tree.leaves(distance))),
}


@validate_arguments
def proximal(mu: NonNegative = 0.01, form: str = "squared") -> Term:
    """Pull each client towards where it started, so that long local training cannot drift far.

        squared:          mu/2 ||w - w_start||^2
        norm_per_tensor:  mu sum_t ||w_t - w_start,t||, with gradient 0 at 0

    Trainable parameters only.   Reads: view.start.   mu: the paper's μ, 0.001 to 1; 0 is FedAvg.
    `norm_per_tensor` is what the FedLD repository runs as its FedProx baseline: a pull of constant size.
    Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. arXiv:1812.06127
    """
    if form not in FORMS:
        raise InputError(f"proximal: unknown form '{form}'. {nearest(form, FORMS)}")

    def proximal(forward: ForwardPass) -> Array:
        return FORMS[form](tree.subtract(forward.params, forward.view.start["params"]), mu)

    return proximal
