"""Methods for data that change with the round: FLASH and Adaptive-FedAvg."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.peers import no_report
from fedjax_het.client.schedules import published_factor
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.server.drift import learning_rate_factor
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, validate_arguments


@validate_arguments
def flash(
    server_learning_rate: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    b1: FractionBelowOne = 0.9,
    b2: FractionBelowOne = 0.99,
    tau: Annotated[Positive, LogUniform(1e-5, 0.1)] = 1e-3,
    *,
    safe: bool = False,
    early_stopping: NonNegative | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FLASH: longer server steps where updates grow, and early stopping.

        w_i = SGD(F_i, start at w),   D = mean_i (w_i - w)
        m <- b1 m + (1 - b1) D,   v' = b2 v + (1 - b2) D^2,   b3 = v / (|D^2 - v'| + v)
        d <- b3 d + (1 - b3) (D^2 - v'),   v <- v',   w <- w + eta m / (sqrt(v) - d + tau)

    Communication: same as FedAvg. Client state: none. Server state: m, v and d.

    d grows where updates exceed their moving average, as after a change of the data. It has another unit than sqrt(v):
    for changes of weights above about .1 the denominator may be negative, and the step is reversed; `safe` avoids this.
    Setting (FL4Health): b1 .9, b2 .99, eta .1, tau 1e-9.
    Differences from published code: there is none by the authors. In FL4Health's, entries that never changed become
    NaN (0/0 in b3, here 0), clients without validation examples raise an error, and tau is 1e-9.

    Args:
        server_learning_rate: The paper's eta (default .1).
        b1: The paper's beta_1 (default .9).
        b2: The paper's beta_2 (default .99).
        tau: Degree of adaptivity (default 1e-3, as in FedAdam).
        safe: Whether the denominator is max(sqrt(v) - d, tau) (default False, as in the paper).
        early_stopping: The paper's gamma. A client stops after epoch e = 1, 2, ... (from 0) if it lowered the loss on
            its validation examples, or training examples without any, by less than gamma / (e + 1). It needs at least
            three epochs per round. None (default): clients train all epochs.
        weighting: Client weights: "uniform" (default) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: early_stopping with fewer than three epochs per round.

    References:
        Panchal et al., Flash: Concept Drift Adaptation in Federated Learning, ICML 2023; code
        VectorInstitute/FL4Health (a third party).
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, early_stopping=early_stopping),
        aggregator=mean(weighting),
        server_optimizer=optimizers.flash(server_learning_rate, b1, b2, tau, safe=safe),
    )


@validate_arguments
def ada_fedavg(
    b1: FractionBelowOne = 0.5,
    b2: FractionBelowOne = 0.5,
    b3: FractionBelowOne = 0.5,
    *,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """Adaptive-FedAvg: the local learning rate follows the server's model.

        mu <- b1 mu + (1 - b1) w,   s <- b2 s + (1 - b2) mean((w - mu_old)^2),   g <- b3 g + (1 - b3) s / s_old
        lr_t = lr min(1, g / t) in round t = 1, 2, ...,   lr_0 = lr

    mu, s and g start at 0 and are corrected for it as in Adam; w is the server's model at the beginning of round t, and
    the mean in s is over its parameters. s / s_old is 1 while s_old is 0. The rate decays as 1 / t while the model
    moves steadily, and rises when it begins to move faster.

    Communication: as FedAvg, and the learning rate, 4 bytes. Client state: none. Server state: mu, s and g.

    Setting (FedDrift's comparison): learning rate .01, b1 = b2 = b3 = .5.
    Differences from published code, which is of a third party: batch statistics are not part of w.

    Args:
        b1: Decay of the mean model (default .5).
        b2: Decay of the variance (default .5).
        b3: Decay of the ratio of variances (default .5).
        weighting: Client weights: "samples" (default) or "uniform".
        training: Settings of local training, see `local_updates.sgd`. `learning_rate` is the initial one, and a
            schedule multiplies the factor above.

    References:
        Canonaco et al., Adaptive Federated Learning in Presence of Concept Drift, IJCNN 2021; code microsoft/FedDrift
        (a third party).
    """
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, factor=published_factor("rate")),
        aggregator=mean(weighting),
        survey={"rate": no_report},
        published={"rate": learning_rate_factor(b1, b2, b3)},
    )
