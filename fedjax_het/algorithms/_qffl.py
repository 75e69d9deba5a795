"""q-FFL."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import LearningRate, TrainingWithoutRate, sgd
from fedjax_het.client.measures import movement_per_rate, training_loss
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import lipschitz_mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def qffl(
    q: Annotated[NonNegative, LogUniform(1e-2, 10.0)] = 1.0,
    learning_rate: LearningRate = 0.1,
    *,
    bounded: bool = True,
    weighting: WeightingOrName = "uniform",
    server_learning_rate: NonNegative = 1.0,
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """q-FFL (q-FedAvg): upweight clients with large losses by a power.

        min  sum_i p_i F_i^(q+1) / (q + 1)
        D_i = (w - w_i) / lr,   Delta_i = F_i^q D_i,   h_i = q F_i^(q-1) ||D_i||^2 + F_i^q / lr,   F_i at the received w
        w <- w - sum_i p_i Delta_i / sum_i p_i h_i

    h_i bounds the curvature of F_i^(q+1), so that the step needs no other learning rate for another q.

    Communication: same as FedAvg, plus the numbers F_i and ||w_i - w||^2 / lr up. Client state: none. A client computes
    F_i on all its training examples before it trains, one pass forward. q = 0 is FedAvg with equal weights.
    steps=1 with a batch of all examples is q-FedSGD.

    Setting: Vehicle lr .01, q 5, 20 rounds, 10 clients, batch 64; Synthetic q 1, 20000 rounds; Sent140 200 rounds;
    Shakespeare 80 rounds.
    Deviations from the code: it draws clients in proportion to n_i, and its mean is unweighted; here clients are drawn
    uniformly, and weighting="samples" is the paper's p_i. Powers do not overflow. 1e-10 is added to F_i, as there.
    Batch statistics take the mean with weights p_i F_i^q.

    Args:
        q: The paper's q (grid .001 to 15).
        learning_rate: Learning rate lr of the local steps, 1/L in the paper.
        bounded: False divides by sum_i p_i / lr, the code's static step: Delta_i is then not normalized.
        weighting: Client weights p_i: "uniform" (code) or "samples".
        server_learning_rate: Factor of the step (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range.

    References:
        Li, Sanjabi, Beirami and Smith, Fair Resource Allocation in Federated Learning, ICLR 2020. arXiv:1905.10497;
        code litian96/fair_flearn.
    """
    schedule = training.get("learning_rate_schedule")
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(learning_rate, **training),
        reports={"loss": training_loss("pre_eval"), "movement": movement_per_rate(learning_rate, schedule)},
        aggregator=lipschitz_mean(q, weighting, is_bounded=bounded),
        server_optimizer=optax.sgd(server_learning_rate),
    )
