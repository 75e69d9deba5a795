"""FedIIR."""

from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import head_gradient
from fedjax_het.client.objectives import cross_entropy, invariance
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import ema, head
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Fraction, NonNegative, may_be_nonzero, validate_arguments


@validate_arguments
def fediir(
    gamma: Annotated[NonNegative, LogUniform(1e-5, 0.1)] = 0.001,
    decay: Fraction = 0.95,
    *,
    per: Literal["batch", "sample", "client"] = "batch",
    debias: bool = False,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedIIR: learn invariant features by aligning clients' head gradients.

        gnew = sum_i sum_b g_ib / (number of batches),   g_ib = grad_head CE of batch b at w       before training
        gbar <- decay gbar + (1 - decay) gnew,           gbar_0 = 0
        min  CE + gamma || grad_head CE - gbar ||^2      on each client, from w
        w <- w + eta_g 1/|S| sum_S (w_i - w)

    Communication: two exchanges per round. Down w, up the sum of g_ib and its count (the size of the head); then
    down gbar, up w_i - w. Client state: none. Server state: gbar. Cost: one extra pass over the local examples per
    round, and second-order gradients.

    Setting: momentum .9, learning rate .01 (RotatedMNIST), .001 (VLCS, Office-Home), .0025 (PACS), batch 64 or 32, 1
    epoch, 100 rounds.
    Deviations from the code: none known. The pass before training uses the examples in stored order. With batch
    normalization, both gradients come from training passes; the authors freeze it.

    Args:
        gamma: The code's penalty (default .001; .01 RotatedMNIST, .005 VLCS, .0005 Office-Home). 0 is FedAvg.
        decay: The code's ema (default .95).
        per: Unit with equal weight in gnew: "batch" (code), "sample" or "client".
        debias: Whether to divide gbar by 1 - decay^t.
        weighting: Client weights: "uniform" (code) or "samples".
        server_learning_rate: Server learning rate eta_g (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Guo, Guo, Cao, Wu and Chang, Out-of-Distribution Generalization of Federated Learning via Implicit Invariant
        Relationships, ICML 2023; code YamingGuo98/FedIIR.
    """
    local_update = sgd(**training)
    # A term of weight 0 would still change how XLA rounds the others.
    return Algorithm(
        objective=(cross_entropy(), *((invariance(gamma, debias),) if may_be_nonzero(gamma) else ())),
        local_update=local_update,
        survey={"mean_gradient": head_gradient(local_update.batch_size, per)},
        published={"mean_gradient": ema(decay, like=head)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
