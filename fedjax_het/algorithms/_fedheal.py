"""FedHEAL."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.consistency import Absence, sign_history, with_consistency_mask
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import result
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import masked_mean
from fedjax_het.server.weightings import distance_momentum
from fedjax_het.validation import Finite, Fraction, NonNegative, Preset, validate_arguments, with_presets


@with_presets(released={"normalised": False, "absence": "counted"})
@validate_arguments
def fedheal(
    tau: Annotated[Finite, Uniform(0.0, 0.6)] = 0.3,
    beta: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.4,
    *,
    normalised: bool = True,
    absence: Absence = "ignored",
    server_learning_rate: NonNegative = 1.0,
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """FedHEAL: mask updates by consistent signs, weight them by distance.

        u_i = w - w_i,   s = [u_i >= 0],   H_i: the mean of s over client i's earlier rounds
        m_i = [c > tau],   c = H_i where s, else 1 - H_i;   all ones in its first round
        d_i = sum over tensors of ||m_i u_i||,   Dp_i <- (1 - beta) Dp_i + beta d_i / sum_j d_j
        p_i <- p_i + Dp_i, at first 1/m + Dp_i,   p <- p / sum p,   over the m clients of the round
        w <- w - sum_i p_i m_i u_i / sum_j p_j m_j,   elementwise; w is unchanged where all masks are 0

    Communication: down w; up -m_i u_i, m_i (one byte per parameter here; one bit would suffice) and d_i. Client
    state: the counts of its signs, one number per parameter. Server state: p_i, Dp_i. Numbers of examples are not
    used.

    Masks and distances use parameters only; batch statistics take the weighted mean.
    Setting: 20 clients of 4 domains (Digits, 1 % of the examples; Office-Caltech, 10 %), all in every round, 200
    rounds, 10 epochs, SGD .001, momentum .9, weight decay 1e-5, batch 64 (16 for Office-Caltech).
    Deviations from the code: it stores p without dividing by its sum, so that later distances have less and less
    effect; it counts rounds of absence as if the old mean H had been observed again, and keeps the last distances of
    absent clients in sum_j d_j. preset="released" reproduces all three. Not reproduced: masks of batch statistics, and
    errors in the first round, for clients that join later, and if no parameter changes; here a client's first mask is
    all ones, and p stays the same if no parameter changes.

    Args:
        tau: The paper's τ (default .3). Below 0, no entry is masked.
        beta: The paper's β (default .4). 0 weights all clients equally.
        normalised: Whether the stored p is divided by its sum.
        absence: Whether rounds of absence are "ignored", or "counted" in H and in sum_j d_j.
        server_learning_rate: Factor of the mean update (default 1).
        preset: "released" sets the options of the public code.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Chen, Huang and Ye, Fair Federated Learning under Domain Skew with Local Consistency and Domain Diversity, CVPR
        2024. arXiv:2405.16585; code yuhangchen0/FedHEAL.
    """
    weighting = distance_momentum(beta, normalised=normalised, counts_absent=absence == "counted")
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=with_consistency_mask(sgd(**training), tau, absence),
        memory={"signs": sign_history()},
        reports={name: result(name) for name in ("mask", "distance")},
        aggregator=masked_mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
