"""FedExP."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.gradients import clipped_gradient, plain_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import squared_norm
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import extrapolated_mean, mean_of_last_two
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, PositiveFraction, Preset, validate_arguments, with_presets


@with_presets(released={"epsilon_per_client": True, "epsilon_decay": 0.998**2, "clip": 10.0})
@validate_arguments
def fedexp(
    epsilon: NonNegative = 1e-3,
    *,
    epsilon_per_client: bool = False,
    epsilon_decay: PositiveFraction = 1.0,
    clip: Positive | None = None,
    weighting: WeightingOrName = "samples",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedExP: extrapolate server steps if client updates differ.

        D_i = SGD(F_i, start at w) - w,   D = sum_i p_i D_i
        eta_g = max(1, sum_i p_i |D_i|^2 / (2 (|D|^2 + epsilon))),   w <- w + eta_g D
        evaluated: the mean of the last two w

    Communication: same as FedAvg, plus the number |D_i|^2 up. Client state: none.

    Setting: epsilon .001 (CIFAR, CINIC), .1 (EMNIST); SGD .01 (EMNIST .1), 20 local steps, batch 50, 5 of 100 clients,
    Dirichlet .5, 500 rounds.
    Deviations: p_i are shares of the examples in both sums, as in the released code; the paper has p_i = 1/|S|. The
    code also multiplies epsilon by |S| and by .998^2 in every round, and clips gradients at norm 10: preset "released".
    Its "fedavgm(exp)" has no momentum, and is not reproduced.
    Batch statistics are simply averaged.

    Args:
        epsilon: The paper's ε (default 1e-3; grid 1e-3 to 1e-1). A large ε is FedAvg, except for the evaluated model.
        epsilon_per_client: Whether to multiply epsilon by the number of clients in the round.
        epsilon_decay: Factor of epsilon in every round, including the first.
        clip: Maximum norm of a local gradient. None: no clipping (paper).
        weighting: Client weights: "samples", or "uniform" (paper).
        preset: "released" treats epsilon and clips as the authors' code does.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Jhunjhunwala, Wang and Joshi, FedExP: Speeding up Federated Averaging via Extrapolation, ICLR 2023.
        arXiv:2301.09604; code Divyansh03/FedExP.
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=plain_gradient if clip is None else clipped_gradient(clip)),
        reports={"squared_norm": squared_norm},
        aggregator=extrapolated_mean(
            epsilon, weighting, epsilon_per_client=epsilon_per_client, epsilon_decay=epsilon_decay
        ),
        evaluated=mean_of_last_two,
    )
