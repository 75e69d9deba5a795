"""Ditto."""

import warnings
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import proximal_gradient
from fedjax_het.client.local_updates import Training, sgd, with_own_model
from fedjax_het.client.memories import result
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import kept_model
from fedjax_het.errors import InputError
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def ditto(
    lam: Annotated[NonNegative, LogUniform(0.01, 10.0)] = 1.0,
    personal_learning_rate: NonNegative | None = None,
    personal_epochs: Count | None = None,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """Ditto: train personal models regularized towards the global model.

        y_i = SGD(F_i, start at w),   w <- w + eta_g sum_i p_i (y_i - w),   p_i = n_i / sum_j n_j
        v <- v - eta_v (g_i(v) + lam (v - w)),   from the client's last v_i, with the received w

    Communication: same as FedAvg (down w, up y_i - w and n_i); v_i never leaves its client. Client state: v_i, a
    full model; before its first round, the initial w. The personal model is v_i.

    The two models use separate batches, and reset their optimizers (if any) in each round. v_i is only stable for eta_v
    (lam + curvature) < 2.
    Setting: Fashion-MNIST CNN, SGD .05, batch 16, 2 steps, lam 1, 5000 rounds, 10 of 500 clients.
    Deviations from the code, which uses one batch for both steps: clients are weighted by their numbers of examples
    (the code uses equal weights and samples clients by their numbers of examples); momentum applies to the regularizer
    as part of the gradient (other repositories add it outside; the authors use no momentum). Not reproduced: lam
    selected per client by validation, weights exp(q loss), and clipping of updates to the cohort's median norm.

    Args:
        lam: The paper's λ (default 1; 0.1 to 2). 0 trains every client alone.
        personal_learning_rate: eta_v. None: the learning rate of the global model.
        personal_epochs: Epochs of training of v. None: as much training as for the global model.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform" (the authors' code).
        training: Settings of local training of both models, see `local_updates.sgd`.

    Raises:
        InputError: personal_learning_rate is combined with another optimizer, or a number is out of range.

    References:
        Li et al., Ditto: Fair and Robust Federated Learning Through Personalization, ICML 2021. arXiv:2012.04221;
        code litian96/ditto, PFLlib (a third party).
    """
    own: Training = {**training}
    if personal_learning_rate is not None:
        if isinstance(own.get("optimizer"), optax.GradientTransformation):
            raise InputError(
                "personal_learning_rate: the given optimizer has its own learning rate. Remove one of the two."
            )
        own["learning_rate"] = personal_learning_rate
    if personal_epochs is not None:
        own.pop("steps", None)
        own["epochs"] = personal_epochs
    stiffness = own.get("learning_rate", 0.1) * lam
    if own.get("optimizer") is None and isinstance(stiffness, float) and stiffness >= 2:
        warnings.warn(
            f"lam: lam times the learning rate of personal models is {stiffness:g}. Keep it below 2, or they diverge.",
            stacklevel=2,
        )
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=with_own_model(sgd(**training), sgd(**own, gradient=proximal_gradient(lam))),
        memory={"own": result("own")},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=kept_model,
    )
