"""FedGen."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import class_counts
from fedjax_het.client.objectives import cross_entropy, generated_features
from fedjax_het.models import with_generator
from fedjax_het.server import aggregators
from fedjax_het.server.aggregators import LabelWeights, mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, Fraction, NonNegative, validate_arguments


@validate_arguments
def fedgen(
    alpha: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 10.0,
    beta: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 10.0,
    decay: Fraction = 0.98,
    generated_batch_size: Count = 32,
    *,
    generator_learning_rate: NonNegative = 3e-4,
    generator_steps: Count = 40,
    diversity: NonNegative = 1.0,
    hidden: Count = 256,
    noise: Count = 32,
    label_weights: LabelWeights = "example",
    server_learning_rate: NonNegative = 1.0,
    weighting: WeightingOrName = "samples",
    **training: Unpack[Training],
) -> Algorithm:
    """FedGen: clients learn from features that the server's generator makes.

        clients:  min  CE + a_t B'/B CE(h(G(e', y')), y') + b_t KL( softmax(h(G(e, y))) || softmax(z) )
                  a_t = max(alpha decay^t, 1e-4), b_t likewise;   w <- w + eta_g sum_i p_i (w_i - w)
        server:   min  sum_i mean_b w_{y_b, i} CE(h_i(G_b), y_b) + diversity exp(-mean |e_b - e_b'|^2 |G_b - G_b'|)

    G(e, y) are features, h the head, w_{c, i} client i's share of the examples of class c; targets of KL are constant.

    Communication: down w and the generator, up w_i - w and the numbers of examples per class. Client state: none.

    The first round is FedAvg. The generator has one hidden layer with batch norm: statistics of the batch at the
    server, running ones at clients; the server keeps its Adam state.
    Setting: 20 users, 10 a round, 200 rounds, 20 batches of 32 a round, SGD .01, MNIST (Dirichlet .1; Adam 1e-4),
    EMNIST (beta 1), CelebA.
    Differences from the authors' code: there, label weights are lost, because it multiplies arrays of different shapes
    (label_weights="batch"); label counts begin at 1 and count the examples of batches; only the first 20 epochs of a
    client use the generator. Noise is uniform, as in the code; the paper says Gaussian.

    Args:
        alpha: Weight of generated examples (default 10).
        beta: Weight of the divergence (default 10; 1 for EMNIST).
        decay: Factor per round of both weights, and of the generator's learning rate (default .98).
        generated_batch_size: The number of generated examples per local step (default 32).
        generator_learning_rate: The learning rate of the generator's Adam (default 3e-4).
        generator_steps: The generator's steps per round (default 40), of 128 examples.
        diversity: The paper's weight of the diversity loss (default 1).
        hidden: Hidden units of the generator (default 256).
        noise: Random inputs of the generator (default 32).
        label_weights: "example" (default), or "batch", as released.
        server_learning_rate: Factor of the mean update (default 1).
        weighting: Client weights: "samples" (code) or "uniform".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: Features are maps, or a number is out of range.

    References:
        Zhu, Hong and Zhou, Data-Free Knowledge Distillation for Heterogeneous Federated Learning, ICML 2021.
        arXiv:2105.10056; code zhuangdizhu/FedGen.
    """
    aggregator = aggregators.with_generator(
        mean(weighting),
        hidden=hidden,
        noise=noise,
        steps=generator_steps,
        learning_rate=generator_learning_rate,
        decay=decay,
        eta=diversity,
        label_weights=label_weights,
    )
    return Algorithm(
        objective=(cross_entropy(), generated_features(alpha, beta, decay, batch_size=generated_batch_size)),
        local_update=sgd(**training),
        reports={"labels": class_counts},
        aggregator=aggregator,
        adapt=with_generator(hidden, noise),
        server_optimizer=optax.sgd(server_learning_rate),
    )
