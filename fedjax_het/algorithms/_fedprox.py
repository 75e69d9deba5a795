"""FedProx."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import ProximalForm, cross_entropy, proximal
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def fedprox(
    mu: Annotated[NonNegative, LogUniform(1e-4, 1.0)] = 0.01,
    form: ProximalForm = "squared",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedProx: keep clients close to the model they received.

        min  F_i(w) + mu/2 ||w - w^t||^2,   then average as FedAvg does

    Communication: same as FedAvg. Client state: none.

    The authors' option to use partial work of stragglers is not implemented: every client trains for all epochs.

    Args:
        mu: The paper's μ (default .01; grid .001, .01, .1, .5, 1). 0 is FedAvg. Requires mu times the learning rate <
            2.
        form: "squared" (paper), or "norm_per_tensor", as in the FedProx baseline of the FedLD repository.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Li et al., Federated Optimization in Heterogeneous Networks, MLSys 2020. arXiv:1812.06127; code
        litian96/FedProx.
    """
    return Algorithm(
        objective=(cross_entropy(), proximal(mu, form)),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
