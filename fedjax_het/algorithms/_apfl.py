"""APFL."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import Uniform
from fedjax_het.client.local_updates import Training, pop_optimizer, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.optimizers import trainable_only
from fedjax_het.client.personalization import AlphaRule, Mix, Order, mixed_model, mixture, mixture_training
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Fraction, NonNegative, Preset, validate_arguments, with_presets


@with_presets(released={"mix": "outputs", "order": "after", "alpha_rule": "released", "keep_momentum": True})
@validate_arguments
def apfl(
    alpha: Annotated[Fraction, Uniform(0.0, 1.0)] = 0.5,
    adaptive: bool = True,
    *,
    mix: Mix = "parameters",
    order: Order = "before",
    alpha_rule: AlphaRule = "gradient",
    keep_momentum: bool = False,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "uniform",
    preset: Preset = "default",
    **training: Unpack[Training],
) -> Algorithm:
    """APFL: mix a personal model with the global model on each client.

        each step:  w_i <- w_i - lr g(w_i);   v_i <- v_i - lr alpha_i g(m),   m = alpha_i v_i + (1 - alpha_i) w_i before
        first step of a round:  alpha_i <- alpha_i - lr <v_i - w_i, g(m)>, clipped to [0, 1]
        w <- w + eta_g 1/|S| sum_S (w_i - w)

    Communication: same as FedAvg (down w, up w_i - w; alpha does not affect w). Client state: v_i (a full model),
    alpha_i and the momentum of v_i; before its first round, the initial w and alpha. The personal model mixes v_i
    with the server's current w. Cost: two gradients per step.

    Setting: FedTorch's defaults are alpha .5, not adaptive.
    Deviations from the code (preset="released" undoes them): the code mixes outputs instead of parameters, also in
    evaluation, with w_i after its step; it updates alpha by <v' - w', alpha (dL/dv + decay v) + (1 - alpha) dL/dw> +
    .02 alpha, without the weight decay of w_i; and it also keeps the momentum of w_i between rounds. Not reproduced:
    three other repositories implement APFL with a stale mixture, with alpha v + alpha w, or with a v that is trained
    alone.

    Args:
        alpha: Initial alpha_i (default .5; .5 to .75). 0 is FedAvg; with 1 every v_i is trained alone.
        adaptive: Whether alpha_i is updated.
        mix: The mixed quantity: "parameters", or "outputs" (two forward passes).
        order: Whether the mixture uses w_i "before" or "after" its step.
        alpha_rule: Update of alpha_i: "gradient" or "released".
        keep_momentum: Whether to keep w_i's momentum between rounds; v_i's is always kept.
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "uniform" or "samples".
        preset: "released" follows the authors' code, as above.
        training: Settings of local training of both models, see `local_updates.sgd`.

    References:
        Deng, Kamani and Mahdavi, Adaptive Personalized Federated Learning, 2020. arXiv:2003.13461; code
        MLOPTPSU/FedTorch, litian96/ditto (a third party).
    """
    schedule, learning_rate = training.pop("learning_rate_schedule", None), training.get("learning_rate", 0.1)
    optimizer = trainable_only(pop_optimizer(training), training.pop("only", None))
    rule = mixture_training(
        optimizer,
        learning_rate if adaptive else 0.0,
        mix,
        order,
        alpha_rule,
        keep_common=keep_momentum,
        weight_decay=training.get("weight_decay", 0.0),
        schedule=schedule,
    )
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, optimizer=optax.scale(-1.0), gradient=rule),
        memory={"own": mixed_model(alpha, optimizer, keep_common=keep_momentum)},
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=mixture(mix),
    )
