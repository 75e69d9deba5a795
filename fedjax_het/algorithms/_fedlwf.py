"""FedLwF."""

from typing import Annotated, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import learning_without_forgetting
from fedjax_het.client.peers import no_report
from fedjax_het.server.aggregators import mean
from fedjax_het.server.tasks import model_of_last_task
from fedjax_het.server.weightings import WeightingOrName
from fedjax_het.validation import NonNegative, Positive, validate_arguments


@validate_arguments
def fedlwf(
    lam: Annotated[NonNegative, LogUniform(0.1, 100.0)] = 3.0,
    temperature: Positive = 2.0,
    *,
    weighting: WeightingOrName = "uniform",
    **training: Unpack[Training],
) -> Algorithm:
    """FedLwF: learn new classes, and distill the model of the last task.

        min  1/B sum_b -log softmax_new(z_b)[y_b] - lam 1/B sum_b sum_{c in old} q_c log p_c
        q = softmax_old(z^old_b / T),   p = softmax_old(z_b / T),   z^old: the server's model when the task began

    Communication: down w and the model of the last task; up w_i - w. Client state: none. Server state: the model of the
    last task.

    Tasks are phases of the data, as with the drift "tasks". The softmaxes are over the new classes of this task and
    the classes of earlier ones; classes that have not appeared yet are in none. In the first task this is FedAvg over
    its classes.
    Setting: CIFAR-100, 5 tasks, 5 clients, Dirichlet .3, 100 rounds of 5 epochs per task, SGD .01, momentum .9, weight
    decay 5e-4, batch 128.
    Differences from the code: the head has all classes from the start. The old model is counted as traffic in every
    round, though it changes once per task.

    Args:
        lam: Weight of the distillation (default 3, as in the code; 25 in its comment).
        temperature: The temperature T (default 2).
        weighting: Client weights: "uniform" (default) or "samples".
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: When traced: the labels are no classes.

    References:
        Li and Hoiem, Learning without Forgetting, TPAMI 2018. arXiv:1606.09282; Zhang et al., TARGET: Federated
        Class-Continual Learning via Exemplar-Free Distillation, ICCV 2023, whose code
        zj-jayzhang/Federated-Class-Continual-Learning has it as a baseline.
    """
    return Algorithm(
        objective=(learning_without_forgetting(lam, temperature),),
        local_update=sgd(**training),
        survey={"last_task": no_report},
        published={"last_task": model_of_last_task()},
        aggregator=mean(weighting),
    )
