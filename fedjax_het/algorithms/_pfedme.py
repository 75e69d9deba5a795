"""pFedMe."""

import warnings
from typing import Annotated, Literal, Unpack

import optax

from fedjax_het.algorithm import Algorithm, Memory
from fedjax_het.annotations import LogUniform
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
    """pFedMe: personal models near the global model, which follows them.

        each local step, on one batch:
            theta <- theta - rho (g(theta) + lam (theta - l)), personal_steps times;   l <- l - lr lam (l - theta)
        w <- (1 - beta) w + beta sum_i p_i l_i,   p_i = n_i / sum_j n_j;   l = theta = w at the start of a round

    Communication: same as FedAvg (down w, up l_i - w and n_i). Client state: theta_i, used for evaluation only;
    before its first round, the initial w. The personal model is theta_i. Only the clients of the cohort train.

    A local step takes personal_steps gradients. theta is only stable for rho (lam + curvature) < 2, l for lr lam < 2.
    Setting: MNIST, logistic regression: lr .005, rho .1, lam 15, beta 1, batch 20, 20 steps of 5, 5 clients per round,
    800 rounds; Synthetic: rho .01, lam 20, 10 clients. Tuned: lr .01, beta 2.
    Deviations from the code: it has weight decay .001 on theta (0 here); trains all clients in every round, and draws
    the cohort afterwards; and evaluates the local model l_i as the personal one (evaluated="local").

    Args:
        learning_rate: eta, the learning rate of l, which multiplies lam (default .005).
        lam: The paper's λ (default 15; 15 to 30). With 0 no model changes.
        personal_learning_rate: rho, the learning rate of theta (default .1; .01 to .1).
        personal_steps: The paper's K (default 5).
        restart: Whether theta starts at l in every local step. False: at w in the first step only (code).
        evaluated: "personal" (theta_i) or "local" (l_i, as in the published results).
        server_learning_rate: The paper's β (default 1). Values above 1 overshoot.
        weighting: Client weights: "samples" (code) or "uniform" (paper).
        training: Settings of local training, see `local_updates.sgd`; `weight_decay` applies to theta.

    References:
        Dinh, Tran and Nguyen, Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020. arXiv:2006.08848;
        code CharlieDinh/pFedMe.
    """
    stiffness = lam * personal_learning_rate
    if isinstance(stiffness, float) and stiffness >= 2:
        warnings.warn(
            f"lam: lam times personal_learning_rate is {stiffness:g}. Keep it below 2, or personal models diverge.",
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
