"""FedNTD."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy, not_true_distillation
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, may_be_nonzero, validate_arguments


@validate_arguments
def fedntd(
    beta: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 1.0,
    tau: Positive = 1.0,
    *,
    tau_squared: bool = True,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedNTD: distill the received model's logits of not-true classes.

        min  CE + beta tau^2 1/B sum_b sum_{c != y_b} q_g(c) log( q_g(c) / q(c) )
        q = softmax(z / tau) over the classes other than y_b; q_g: the same for the received model
        then average as FedAvg does

    Communication: same as FedAvg. Client state: none. Cost: one extra forward pass per step. With two classes the
    term is 0, and with one local step per round, without batch norms or dropout, its gradient is 0: both cases are
    FedAvg.

    Setting: CIFAR-10, 100 clients, 10 per round, SGD .01 times .99 per round, momentum .9, decay 1e-5, batch 50, 5
    epochs, 200 rounds, 2 shards per client or Dirichlet.
    Deviations: the received model is in evaluation mode; in the released code, the very first client's is in training
    mode by mistake. That code draws the same cohorts in every run, which is not reproduced.

    Args:
        beta: The paper's β (default 1). 0 is FedAvg.
        tau: The paper's τ (default 1; 3 in the code's constructor).
        tau_squared: Whether the term has the factor tau^2, as in the code; the printed term has none.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Lee et al., Preservation of the Global Knowledge by Not-True Distillation in Federated Learning, NeurIPS 2022.
        arXiv:2106.03097; code Lee-Gihun/FedNTD.
    """
    term = not_true_distillation(beta, tau, tau_squared=tau_squared)
    return Algorithm(
        objective=(cross_entropy(), term) if may_be_nonzero(beta) else (cross_entropy(),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
