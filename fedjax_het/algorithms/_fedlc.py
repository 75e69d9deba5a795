"""FedLC."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import CalibrationForm, calibrated_cross_entropy
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def fedlc(
    tau: Annotated[NonNegative, LogUniform(0.05, 2.0)] = 0.5,
    form: CalibrationForm = "inclusive",
    floor: Positive | None = None,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedLC: calibrate logits by each client's class counts.

        min  1/B sum_b CE(z_b - m, y_b),   m_c = tau n_c^(-1/4),   n_c: the client's examples of class c
        then average as FedAvg does

    Communication: same as FedAvg. Client state: none. Evaluation uses the uncalibrated logits.

    Settings in other repositories: tau .1, SGD .01, momentum .9, batch 64, 10 epochs, 10 clients, 100 rounds
    (FedDecorr); tau .5, batch 128, .01, 400 rounds (Flower). Clients with a single class change only by weight decay.
    The authors released no code. The printed sum omits the true class; no runnable code does so, and it is an option
    here. Codes disagree on classes without examples: infinite margins (as here, the limit of the formula), counts of
    1e-8 (`floor`), 1e-5 with exponentials clipped at 100, or counts over all clients (both not reproduced). With tau =
    0 some return NaN; here it is FedAvg. For small tau > 0, missing classes are still excluded.

    Args:
        tau: The paper's τ (default .5; grid .1, .5, 1). 0 is FedAvg.
        form: "inclusive", or "printed" as in the paper's Eq. 7, which is unbounded below.
        floor: Lower bound of the class counts. None excludes classes without examples from the sums.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Zhang et al., Federated Learning with Label Distribution Skew via Logits Calibration, ICML 2022.
        arXiv:2209.00189; code bytedance/FedDecorr and others (third parties).
    """
    return Algorithm(
        objective=(calibrated_cross_entropy(tau, form, floor),),
        local_update=sgd(**training),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
