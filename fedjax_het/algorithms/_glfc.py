"""GLFC, without its proxy server."""

from typing import Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.measures import mean_entropy
from fedjax_het.client.task_memory import compensated_cross_entropy, exemplars, tasks_so_far
from fedjax_het.models import with_image_shape, with_logit_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def glfc(
    exemplars_per_class: Count = 20,
    replay_size: Count = 20,
    rise: NonNegative | None = None,
    *,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """GLFC: replay stored examples, and weigh rarely known classes more.

        w_b = g_b / mean of g over the examples of old classes (or over the others),   g_b = 1 - sigmoid(z_{b y_b})
        min  1/2 mean w_b BCE(z_b, y_b) + 1/2 mean BCE(z_b, t_b),   t_bc = sigmoid(z^old_bc) for old classes, else y_bc

    Communication: as FedAvg; up also the mean entropy of predictions if rise is given. Client state: a model of
    earlier tasks, exemplars_per_class images of each class that the client had, and its classes.

    When a task begins, the classes that a client had are old, and z^old is of the model that it then received. The
    batch of a step is extended by replay_size images of old classes. Exemplars of present classes are chosen in every
    round by herding. Classes that a client never had are in no mean. In the first task the loss is the mean binary
    cross-entropy.
    Setting: CIFAR-100, 10 tasks of 10 classes, 10 rounds a task, 30 clients and 10 new ones a task, 10 a round, 20
    epochs, rate 2, batch 128, 2000 exemplars.
    Differences from the authors' code: tasks begin with phases of the data, unless rise is given. There is no proxy
    server, which reconstructs images from gradients of clients to choose the best old model; the newest model is taken.
    Images of old classes are drawn beside the batch instead of mixed into it. The number of exemplars per class is
    fixed, instead of falling with the number of classes. The head has all classes from the start.

    Args:
        exemplars_per_class: The number of images stored of each class (default 20).
        replay_size: The number of stored images per step (default 20).
        rise: A client's task begins where the mean entropy of the received model's predictions on its examples rises by
            more than this (1.2 in the paper, for 100 classes). None (default): with a phase of the data.
        weighting: Client weights: "uniform" (default) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: When traced: inputs are not images, or features not vectors.

    References:
        Dong et al., Federated Class-Incremental Learning, CVPR 2022. arXiv:2203.11473; code conditionWang/FCIL.
    """
    return Algorithm(
        objective=(compensated_cross_entropy(replay_size, rise),),
        local_update=sgd(**training),
        survey={} if rise is None else {"entropy": mean_entropy()},
        memory={"tasks": tasks_so_far(rise), "exemplars": exemplars(exemplars_per_class)},
        aggregator=mean(weighting),
        adapt=lambda model: with_image_shape(with_logit_shape(model)),
    )
