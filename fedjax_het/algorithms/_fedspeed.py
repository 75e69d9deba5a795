"""FedSpeed and FedSMOO."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import dynamic_gradient, wrapped_rule
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import displacement, shared_gradient_state
from fedjax_het.client.memories import gradient_state, total_displacement
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import consensus_sharpness_aware, sharpness_aware
from fedjax_het.server.aggregators import Displaced, displaced_mean
from fedjax_het.server.summaries import mean_of_length
from fedjax_het.validation import Fraction, NonNegative, Positive, validate_arguments


@validate_arguments
def fedspeed(
    lamb: Annotated[Positive, LogUniform(0.01, 10.0)] = 0.1,
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    mix: Fraction = 1.0,
    normalised: bool = True,
    server: Displaced = "all",
    epsilon: NonNegative = 1e-12,
    clip: Positive | None = None,
    **training: Unpack[Training],
) -> Algorithm:
    """FedSpeed: FedSAM's gradient with FedDyn's regularizer.

        e = rho g(w) / (||g(w)|| + epsilon),   gtilde = (1 - mix) g(w) + mix g(w + e)
        w <- w - lr (gtilde + lamb h_i + lamb (w - x)),    K_i steps from w = x, the received model
        h_i <- h_i + (w_i - x)                             (the paper's correction ghat_i is -lamb h_i)
        x <- 1/|S| sum_S w_i + hbar,                       hbar: the mean of h_i over all N clients

    Communication: same as FedAvg; with server="participants" also h_i up (in the paper the single sum w_i + h_i).
    Client state: h_i, the size of the shared parameters, zero before its first round. Server state: hbar. Cost: two
    gradients per step.

    g is the gradient of the task loss alone: neither the correction nor the proximal term enters e. rho = 0 or mix = 0
    is FedDyn with alpha = lamb.
    Setting (FL-Simulator): lamb .1, rho .1, SGD .1 times .998 per round, decay 1e-3, batch 50, 5 epochs, 10 of 100
    clients, 1,000 rounds, clip 10.
    The default follows the authors' code, which differs from their Algorithm 1; use server="participants",
    normalised=False and mix below 1 for the latter. The authors say that their method needs a decaying learning rate
    and lamb if few clients participate. Both servers agree if all clients participate.

    Args:
        lamb: Weight of the proximal term, the paper's 1/λ > 0 (default .1).
        rho: Perturbation radius, the paper's ρ (default .1). 0 is FedDyn.
        mix: Share of the perturbed gradient, the paper's α (default 1, as in the code).
        normalised: Whether e has the norm rho (code). False: e = rho g (paper).
        server: Clients over which h_i is averaged: "all" (code) or the "participants" of the round (paper).
        epsilon: Constant added to the norm; 1e-7 in the code.
        clip: Maximum norm of gtilde + lamb (h_i - x), without lamb w, as in FedDyn's code, so that clipping depends on
            the origin of the weights (10 in the code). None: no clipping (paper).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Sun et al., FedSpeed: Larger Local Interval, Less Communication Round, and Higher Generalization Accuracy, ICLR
        2023. arXiv:2302.10429; code woodenchild95/FL-Simulator.
    """
    norm = "whole" if normalised else "none"
    ascent = sharpness_aware(rho, norm, epsilon=epsilon, mix=mix, only=training.get("only"))
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=dynamic_gradient(lamb, clip=clip, gradient=ascent)),
        memory={"displacement": total_displacement()},
        reports={"displacement": displacement} if server == "participants" else {},
        aggregator=displaced_mean(server),
    )


@validate_arguments
def fedsmoo(
    lamb: Annotated[Positive, LogUniform(0.01, 10.0)] = 0.1,
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    epsilon: NonNegative = 1e-12,
    clip: Positive | None = None,
    **training: Unpack[Training],
) -> Algorithm:
    """FedSMOO: FedSpeed with a perturbation on which clients agree.

        each step: q = g(w) - mu_i - s,   e = rho q / (||q|| + epsilon),   mu_i <- mu_i + e - s
                   w <- w - lr (g(w + e) + lamb h_i + lamb (w - x)),    K_i steps from w = x, the received model
        h_i <- h_i + (w_i - x),   x <- 1/|S| sum_S w_i + hbar,   hbar: the mean of h_i over all N clients
        v = 1/|S| sum_S mu_i,     s <- rho v / (||v|| + epsilon)

    Communication: down x and s, up w_i - x and mu_i: twice FedAvg's. Client state: h_i and mu_i, each the size of
    the shared parameters, zero before its first round. Server state: hbar. Cost: two gradients per step.

    g is the gradient of the task loss alone; by design, mu_i and s are the only corrections that enter e. rho = 0 is
    FedDyn with alpha = lamb. mu_i is not bounded: after many steps it affects the direction of e more than g does.
    Setting (FL-Simulator): lamb .1, rho .1, SGD .1 times .998 per round, decay 1e-3, batch 50, 5 epochs, 10 of 100
    clients, 1,000 rounds, clip 10.
    As in the authors' code, s omits the participants' last perturbation, which the paper adds to v. Until some time
    after October 2024, that code used the first entries of mu_i and s for every tensor, which is not reproduced.

    Args:
        lamb: Weight of the proximal term, the paper's 1/β > 0 (default .1).
        rho: Perturbation radius, the paper's r (default .1). 0 is FedDyn.
        epsilon: Constant added to both norms; 1e-7 in the code.
        clip: Maximum norm of g(w + e) + lamb (h_i - x), as in `fedspeed` (10 in the code). None: no clipping (paper).
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Sun et al., Dynamic Regularized Sharpness Aware Minimization in Federated Learning: Approaching Global
        Consistency and Smooth Landscape, ICML 2023. arXiv:2305.11584; code woodenchild95/FL-Simulator.
    """
    ascent = consensus_sharpness_aware(rho, epsilon=epsilon, only=training.get("only"))
    rule = wrapped_rule(ascent, lambda gradient: dynamic_gradient(lamb, clip=clip, gradient=gradient))
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=rule),
        memory={"displacement": total_displacement(), "perturbation": gradient_state()},
        reports={"perturbation": shared_gradient_state},
        published={"perturbation": mean_of_length(rho, epsilon)},
        aggregator=displaced_mean(),
    )
