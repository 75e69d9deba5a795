"""FedSAM and FedASAM."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm, GradientRule
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import clipped_gradient
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.sharpness import AdaptiveParameters, sharpness_aware
from fedjax_het.server.aggregators import averaged_model, mean, with_model_average
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, refuse_without_effect, validate_arguments


@validate_arguments
def fedsam(
    rho: Annotated[NonNegative, LogUniform(1e-3, 1.0)] = 0.1,
    *,
    epsilon: NonNegative = 1e-12,
    clip: Positive | None = None,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    swa_start: CountOrZero | None = None,
    swa_cycle: Count = 10,
    **training: Unpack[Training],
) -> Algorithm:
    """FedSAM: sharpness-aware minimization on the clients.

        e = rho g(w) / (||g(w)|| + epsilon),   w <- w - lr g(w + e),    K_i steps from the received model
        server: w <- w + eta_g sum_i p_i (w_i - w)

    Communication: same as FedAvg. Client state: none. Cost: two gradients per step.

    The norm is taken over all trained parameters. g is the gradient of the task loss alone: terms that are added to the
    objective are differentiated at w and enter neither e nor the perturbed pass. rho = 0 is FedAvg.
    Setting: Caldarola et al.: CIFAR-10 and CIFAR-100, rho .1 (.02 to .2), SGD .01, decay 4e-4, batch 64, 1 epoch, 5 of
    100 clients, 10,000 rounds; Qu et al. in FL-Simulator: rho .1, SGD .1 times .998 per round, decay 1e-3, batch 50, 5
    epochs, 10 of 100 clients, 1,000 rounds, weighting "uniform".
    Deviations: the codes perturb weights in place, which leaves a rounding error, and update batch statistics in both
    passes, not only in the first. With SWA, the authors' code evaluates the model from before round swa_start until it
    has a mean; here it is the server's model. Batch statistics are averaged like the weights.

    Args:
        rho: Perturbation radius, the papers' ρ (default .1; .05 to .2). 0 is FedAvg.
        epsilon: Constant added to the norm: 1e-16 in the authors' code, 1e-7 in FL-Simulator.
        clip: Maximum norm of g(w + e) (10 in FL-Simulator). None: no clipping (the papers and the authors' code).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" (Caldarola et al.) or "uniform" (Qu et al.).
        swa_start: Round after which the server's models are averaged (SWA); the mean is evaluated as soon as there is
            one. The paper uses three quarters of all rounds. None evaluates the server's model.
        swa_cycle: Number of rounds between models in that mean (default 10). Use the schedule "cyclic" with the same
            numbers for the learning rate of those rounds.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022.
        arXiv:2203.11834; Qu et al., Generalized Federated Learning via Sharpness Aware Minimization, ICML 2022.
        arXiv:2206.02618; code debcaldarola/fedsam, woodenchild95/FL-Simulator.
    """
    rule = sharpness_aware(rho, epsilon=epsilon, only=training.get("only"))
    swa = _read_swa(fedsam, swa_start, swa_cycle)
    return _with_rule(rule, clip, server_learning_rate, weighting, swa, training)


@validate_arguments
def fedasam(
    rho: Annotated[NonNegative, LogUniform(0.01, 5.0)] = 0.7,
    eta: NonNegative = 0.2,
    *,
    adaptive: AdaptiveParameters = "weights",
    epsilon: NonNegative = 1e-12,
    clip: Positive | None = None,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    swa_start: CountOrZero | None = None,
    swa_cycle: Count = 10,
    **training: Unpack[Training],
) -> Algorithm:
    """FedASAM: FedSAM with perturbations that scale with each weight.

        e = rho T^2 g(w) / (||T g(w)|| + epsilon),   w <- w - lr g(w + e),    T = |w| + eta for weights, 1 for biases
        server: w <- w + eta_g sum_i p_i (w_i - w)

    Communication: same as FedAvg. Client state: none. Cost: two gradients per step.

    With eta = 0, rescaling a network without changing its function does not change where the perturbation leads; a
    large eta perturbs only the weights, by rho eta along g. g is the gradient of the task loss alone, as in `fedsam`.
    rho = 0 is FedAvg. Setting: rho .7, eta .2 (CIFAR-10), otherwise as `fedsam`.
    Deviations: those of `fedsam`. T = 1 for biases and shifts of norms follows the authors' code, not the printed
    formula.

    Args:
        rho: Perturbation radius, the paper's ρ (default .7; .05 to .7).
        eta: The paper's η (default .2). 0 perturbs each weight in proportion to its square.
        adaptive: Parameters with T = |w| + eta: "weights" (kernels and scales of norms, the authors' code) or "all"
            (the printed formula).
        epsilon: Constant added to the norm: 1e-16 in the authors' code, 1e-7 in FL-Simulator.
        clip: Maximum norm of g(w + e) (10 in FL-Simulator). None: no clipping (the papers and the authors' code).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        swa_start: Round after which the server's models are averaged (SWA); the mean is evaluated as soon as there is
            one. The paper uses three quarters of all rounds. None evaluates the server's model.
        swa_cycle: Number of rounds between models in that mean (default 10). Use the schedule "cyclic" with the same
            numbers for the learning rate of those rounds.
        training: Settings of local training, see `local_updates.sgd`.

    References:
        Caldarola, Caputo and Ciccone, Improving Generalization in Federated Learning by Seeking Flat Minima, ECCV 2022.
        arXiv:2203.11834; Kwon et al., ASAM, ICML 2021. arXiv:2102.11600; code debcaldarola/fedsam.
    """
    rule = sharpness_aware(rho, epsilon=epsilon, adaptive=adaptive, offset=eta, only=training.get("only"))
    swa = _read_swa(fedasam, swa_start, swa_cycle)
    return _with_rule(rule, clip, server_learning_rate, weighting, swa, training)


def _read_swa(factory: Callable[..., Algorithm], start: int | None, cycle: int) -> tuple[int, int] | None:
    if start is None:
        refuse_without_effect(factory, "without swa_start", swa_cycle=cycle)
        return None
    return start, cycle


def _with_rule(
    rule: GradientRule,
    clip: float | None,
    server_learning_rate: float,
    weighting: WeightingOrName,
    swa: tuple[int, int] | None,
    training: Training,
) -> Algorithm:
    rule = rule if clip is None else clipped_gradient(clip, rule)
    algorithm = Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, gradient=rule),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
    )
    if swa is None:
        return algorithm
    return replace(algorithm, aggregator=with_model_average(algorithm.aggregator, *swa), evaluated=averaged_model)
