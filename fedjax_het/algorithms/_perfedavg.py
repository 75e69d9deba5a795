"""Per-FedAvg."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.gradients import META_PARTS, Hessian, meta_gradient
from fedjax_het.client.local_updates import Training, refuse_only, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.personalization import fine_tuned
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import CountOrZero, NonNegative, Positive, refuse_without_effect, validate_arguments


@validate_arguments
def perfedavg(
    alpha: Annotated[NonNegative, LogUniform(1e-3, 0.3)] = 0.01,
    hessian: Hessian = "none",
    delta: Positive = 1e-3,
    adaptation_steps: CountOrZero = 1,
    *,
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """Per-FedAvg: train a global model that one step makes a good personal model.

        each local step, on three batches:
            w' = w - alpha g(w; B_0);   w <- w - beta (g(w'; B_1) - alpha H(w; B_2) g(w'; B_1))
        w <- w + eta_g sum_i p_i (w_i - w),   p_i = n_i / sum_j n_j
        personal model of client i:  w - alpha g_i(w)

    Communication: same as FedAvg. Client state: none. The personal model is made anew for every evaluation, from the
    server's current w and a batch of the client's training examples.

    The term with H is left out by default (first order), which takes two batches per step. A step reads two or three
    times batch_size examples, so an epoch has fewer steps. With alpha = 0 this is FedAvg.
    Setting: MNIST, softmax regression: alpha .03, beta .003, batch 20, 20 steps, 800 rounds (pFedMe's tuned values).
    No code by the authors was found. Other repositories differ: one momentum buffer serves both steps (FedBABU's), the
    model is not restored before the second step (fluke), or personal models take their steps on test examples
    (pFedMe's). None of this is reproduced.

    Args:
        alpha: The paper's α (default .01).
        hessian: "none" (default, FO), "exact", or "difference" (HF), with the difference of two gradients.
        delta: The paper's δ, half the length of that difference in units of the gradient (default .001).
        adaptation_steps: Steps of rate alpha before a personal model is evaluated (default 1).
        server_learning_rate: Server learning rate eta_g (default 1).
        weighting: Client weights: "samples" or "uniform".
        training: Settings of local training, see `local_updates.sgd`. learning_rate is the paper's β, batch_size the
            number of examples of each gradient.

    Raises:
        InputError: `only` is given, delta without hessian="difference", or a number is out of range.

    References:
        Fallah, Mokhtari and Ozdaglar, Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
        Meta-Learning Approach, NeurIPS 2020. arXiv:2002.07948; code CharlieDinh/pFedMe, KarhouTam/FL-bench (third
        parties).
    """
    refuse_only("Per-FedAvg adapts all parameters", training)
    if hessian != "difference":
        refuse_without_effect(perfedavg, "without hessian='difference'", delta=delta)
    batch_size, shuffle = training.pop("batch_size", 50), training.get("shuffle", True)
    adaptation = sgd(alpha, steps=adaptation_steps or 1, batch_size=batch_size, shuffle=shuffle)
    gradient = meta_gradient(alpha, hessian, delta)
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training, batch_size=META_PARTS[hessian] * batch_size, gradient=gradient),
        aggregator=mean(weighting),
        server_optimizer=optax.sgd(server_learning_rate),
        personalize=fine_tuned(adaptation) if adaptation_steps else None,
    )
