"""FedDisco."""

from collections.abc import Sequence
from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import class_counts
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server import optimizers
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import Discrepancy, discrepancy_aware
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, refuse_without_effect, validate_arguments


@validate_arguments
def feddisco(
    a: Annotated[NonNegative, Uniform(0.1, 1.0)] = 0.5,
    b: NonNegative = 0.1,
    metric: Discrepancy = "kl",
    *,
    normalise_kl: bool = True,
    target: Sequence[Positive] | None = None,
    server_learning_rate: NonNegative = 1.0,
    server_momentum: FractionBelowOne = 0.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedDisco: downweight clients with label distributions unlike the target.

        p_k = relu(n_k / n - a d_k + b) / sum over the cohort,   d_k = discrepancy(D_k, T),   w <- sum_k p_k w_k
        D_k: the shares of the classes at client k;   T: uniform, or those of the test set

    Communication: same as FedAvg, plus the class counts of a client up (the authors' code sends them once, here
    they accompany every upload). Client state: none. With a = b = 0 this is FedAvg.

    Setting: CIFAR-10, 10 clients, Dirichlet .5, 10 epochs, 100 rounds, batch 64, SGD .01, momentum .9, decay 1e-5.
    Deviations: if no value is positive, FedAvg's weights are used, where the released code fails. The code divides only
    the KL by its sum over the cohort, so the same a is several times stronger with other metrics. Its metric
    "only_iid", which drops clients, and its damping of batch statistics by server momentum are not reproduced.

    Args:
        a: The paper's a (default .5).
        b: The paper's b (default .1).
        metric: Discrepancy: "kl", "l2", "l1" or "cosine", see `weightings.discrepancy_aware`.
        normalise_kl: Whether the KL is divided by its sum over the cohort (released).
        target: T, a list with one positive number per class. None: uniform.
        server_learning_rate: Factor of the mean update (default 1).
        server_momentum: Momentum m in the authors' damped form, v <- m v + (1 - m)(w - mean), w <- w - v. 0: none.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range, or target has a different number of classes.

    References:
        Ye et al., FedDisco: Federated Learning with Discrepancy-Aware Collaboration, ICML 2023. arXiv:2305.19229; code
        MediaBrain-SJTU/FedDisco.
    """
    if metric != "kl":
        refuse_without_effect(feddisco, f"with metric='{metric}'", normalise_kl=normalise_kl)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        reports={"class_counts": class_counts},
        aggregator=mean(discrepancy_aware(a, b, metric, normalise_kl=normalise_kl, target=target)),
        server_optimizer=optimizers.sgd(server_learning_rate, server_momentum, momentum_damping=True),
    )
