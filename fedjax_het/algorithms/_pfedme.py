"""pFedMe."""

import warnings
from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, LogUniform, Memory
from fedjax_het.client.local_updates import TrainingWithoutRate, sgd
from fedjax_het.client.memories import result
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import kept_model, moreau_gradient
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def pfedme(
    learning_rate: Annotated[NonNegative, LogUniform(1e-4, 0.1)] = 0.005,
    lam: Annotated[NonNegative, LogUniform(1.0, 15.0)] = 15.0,
    personal_learning_rate: NonNegative = 0.1,
    personal_steps: Count = 5,
    *,
    restart: bool = False,
    evaluated: Literal["personal", "local"] = "personal",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[TrainingWithoutRate],
) -> Algorithm:
    """pFedMe: own models stay near the common one, which follows them.

        each local step, on one batch:
            theta <- theta - rho (g(theta) + lam (theta - l)), personal_steps times;   l <- l - lr lam (l - theta)
        w <- (1 - beta) w + beta sum_i p_i l_i,   p_i = n_i / sum_j n_j;   l = theta = w at the start of a round

    Communication: same as FedAvg (down w, up l_i - w and n_i). Client state: theta_i, used for evaluation only;
    before its first round, the initial w. The personal model is theta_i. Only the clients of the cohort train.

    A local step costs personal_steps gradients. theta is only stable for rho (lam + curvature) < 2, l for lr lam < 2.
    Setting: MNIST, logistic regression: lr .005, rho .1, lam 15, beta 1, batch 20, 20 steps of 5, 5 clients a round,
    800 rounds; Synthetic: rho .01, lam 20, 10 clients. Tuned: lr .01, beta 2.
    Deviations from the code: there theta decays, weight_decay .001, 0 here; all clients train in every round, and the
    cohort is drawn afterwards; the local model l_i is evaluated as the personal one (evaluated="local").

    Args:
        learning_rate: eta, the rate of l; it multiplies lam.
        lam: The paper's λ, 15 to 30; with 0 nothing moves.
        personal_learning_rate: rho, the rate of theta, .01 to .1.
        personal_steps: The paper's K, 5.
        restart: Whether theta begins at l in every local step; else at w in the first alone, as in the code.
        evaluated: "personal" (theta_i) or "local" (l_i, which the published figures are of).
        server_learning_rate: The paper's β, 1; above 1 the server overshoots.
        weighting: "samples" (code) or "uniform" (paper).
        training: Settings of local training, see `local_updates.sgd`; `weight_decay` is theta's.

    References:
        Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. arXiv:2006.08848;
        code CharlieDinh/pFedMe.
    """
    stiffness = lam * personal_learning_rate
    if isinstance(stiffness, float) and stiffness >= 2:
        warnings.warn(
            f"lam: lam times personal_learning_rate is {stiffness:g}; from 2 on own models diverge. Lower one of them.",
            stacklevel=2,
        )
    weight_decay = training.pop("weight_decay", 0.0)
    gradient = moreau_gradient(lam, personal_learning_rate, personal_steps, weight_decay, restart=restart)
    local_model = Memory(lambda variables: variables, lambda problem, view: view.local)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(learning_rate, **training, gradient=gradient),
        memory={"own": result("gradient") if evaluated == "personal" else local_model},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=kept_model,
    )
