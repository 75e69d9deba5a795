"""Hierarchical de-conflicting, called FedGH in FedLD's tables."""

from typing import Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import hierarchical_mean
from fedjax_het.validation import Fraction, NonNegative, validate_arguments


@validate_arguments
def hierarchical(
    eps: NonNegative = 1e-7,
    decay: Fraction = 0.99,
    *,
    buffers: Literal["weighted_mean", "in_vector"] = "weighted_mean",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """Hierarchical de-conflicting: the method that FedLD's tables call FedGH.

        r: moving average of past aggregates, tensor by tensor
        sort the updates by <g_i, r>, pair best with worst, ..., remove conflicts of pairs; repeat with their sums
        w <- w + eta_g 1/m (the last two, corrected one after the other)

    Communication: same as FedAvg. Client state: none. Server state: r, the size of the shared parameters. Updates
    are unweighted, and the first round is their mean.

    This is neither the method of the FedGH paper (`fedgh`) nor its release, hence the name. Four defects of the codes
    are not reproduced, see `hierarchical_mean`. One is reproduced: the last step is unbounded if the last two updates
    nearly oppose each other.

    Args:
        eps: 1e-7 (FedLD's code; the result then depends on the scale of the updates) or 0 (FedDM's, its origin).
        decay: Decay of r (default .99).
        buffers: Batch statistics: "weighted_mean" (equal weights), or "in_vector", edited like parameters (both codes).
        server_learning_rate: Server learning rate eta_g (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zhu et al., FedDM: Federated Weakly Supervised Segmentation via Annotation Calibration and Gradient
        De-conflicting, MICCAI 2023; code CityU-AIM-Group/FedDM, main.py; run as "FedGH" by Zeng-Shuang/FedLD,
        svd_tools.py.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=hierarchical_mean(eps, decay, buffers=buffers),
        server_optimizer=optax.sgd(server_learning_rate),
    )
