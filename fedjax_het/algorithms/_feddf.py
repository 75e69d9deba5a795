"""FedDF."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.server.aggregators import Scheme, ensemble_distillation
from fedjax_het.validation import Count, CountOrZero, NonNegative, Positive, validate_arguments


@validate_arguments
def feddf(
    distillation_steps: CountOrZero = 1000,
    distillation_learning_rate: Annotated[NonNegative, LogUniform(1e-4, 1e-2)] = 1e-3,
    distillation_batch_size: Count = 128,
    *,
    scheme: Scheme = "logits",
    temperature: Positive = 1.0,
    **training: Unpack[Training],
) -> Algorithm:
    """FedDF: the server distills the clients' ensemble into their mean.

        w <- 1/|S| sum_S w_i, then Adam on  KL( softmax(1/|S| sum_S z_i / T) || softmax(z / T) ) on public examples
        z_i: the logits of client i's model, constant; z: those of w

    Communication: same as FedAvg. Client state: none. Reads public examples, without their labels.

    The mean is uniform. Adam starts anew in every round; its rate decreases to 0 as a cosine, and gradients are clipped
    to norm 5. The server stores the models of the whole cohort.
    Setting: CIFAR-10, ResNet-8, 20 clients, 8 a round, Dirichlet 1, 40 epochs, SGD .1, batch 64, 100 rounds, with
    CIFAR-100 or down-sampled ImageNet as public examples.
    Differences from the authors' code: it has labeled validation examples at the server, by which it stops distillation
    (at most 10 000 steps, 1000 without progress), chooses the best model, and may drop models; here the number of steps
    is fixed. Its constructor's default is scheme="losses"; its scripts and the paper use the mean of logits. Groups of
    networks of different architecture are not supported.

    Args:
        distillation_steps: The number of steps of the server per round (default 1000). 0 is the uniform FedAvg.
        distillation_learning_rate: The learning rate of Adam (default 1e-3).
        distillation_batch_size: The number of public examples per step (default 128).
        scheme: The mean over models of "logits" (default), "probabilities" or "losses".
        temperature: T (default 1).
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range; before the first round, there are no public examples, or leaves are
            personal.

    References:
        Lin, Kong, Stich and Jaggi, Ensemble Distillation for Robust Model Fusion in Federated Learning, NeurIPS 2020.
        arXiv:2006.07242; code epfml/federated-learning-public-code.
    """
    aggregator = ensemble_distillation(
        distillation_steps,
        distillation_batch_size,
        distillation_learning_rate,
        scheme=scheme,
        temperature=temperature,
    )
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sgd(**training),
        aggregator=aggregator,
        reads_public=True,
        reads_classes=distillation_steps > 0,
    )
