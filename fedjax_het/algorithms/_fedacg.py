"""FedACG."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform, Uniform
from fedjax_het.client.gradients import clipped_gradient, plain_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy, proximal
from fedjax_het.server.aggregators import mean
from fedjax_het.server.optimizers import lookahead_momentum, without_lookahead
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import FractionBelowOne, NonNegative, Positive, validate_arguments


@validate_arguments
def fedacg(
    lam: Annotated[FractionBelowOne, Uniform(0.5, 0.95)] = 0.85,
    beta: Annotated[NonNegative, LogUniform(1e-4, 0.1)] = 0.002,
    *,
    clip: Positive | None = None,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FedACG: start clients from a lookahead along the server's momentum.

        z = x + lam m, which is sent
        w <- w - lr (g(w) + beta (w - z)),   K_i steps from w = z
        m <- lam m + 1/|S| sum_S (w_i - z),   x <- 1/|S| sum_S w_i, which is evaluated

    Communication: same as FedAvg, one model in each direction. Client state: none. Server state: m.

    z moves like a server model with Nesterov momentum: except for the evaluated model, FedACG is FedProx with that
    server optimizer. lam = 0 is FedProx, and lam = beta = 0 is FedAvg. A single client does not train as in plain SGD.
    Setting: SGD .1 times .998 per round, decay 1e-3, batch 50, 5 epochs, 5 of 100 clients, Dirichlet .3, ResNet-18 with
    group norms, 1000 rounds.
    Deviations: the released code penalizes .001 ||w - z||^2 without the factor 1/2, which corresponds to beta .002
    here. It clips gradients at norm 10 (an option here), and also decays the learning rate by the round's factor in
    each local epoch; here it decays between rounds only. The lookahead applies to the parameters alone; the code also
    moves batch statistics, and fails on their counters.

    Args:
        lam: The paper's λ (default .85).
        beta: The paper's β (default .002).
        clip: Maximum norm of g + beta (w - z) (10 in the released code). None: no clipping (paper).
        weighting: Client weights: "uniform" or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Kim, Kim and Han, Communication-Efficient Federated Learning with Accelerated Client Gradient, CVPR 2024.
        arXiv:2201.03172; code geehokim/FedACG.
    """
    gradient = plain_gradient if clip is None else clipped_gradient(clip)
    return Algorithm(
        objective=(cross_entropy(), proximal(beta)),
        local_update=sgd(**training, gradient=gradient),
        aggregator=mean(weighting),
        server_optimizer=lookahead_momentum(lam),
        evaluated=without_lookahead,
    )
