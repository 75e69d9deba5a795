"""FedDistill."""

from typing import Annotated, Literal, Unpack

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.class_logits import (
    gradient_with_logits,
    kept_totals,
    mean_logits,
    no_totals,
    totals_with_one_example,
)
from fedjax_het.client.local_updates import Training, sgd
from fedjax_het.client.objectives import cross_entropy, logit_distillation
from fedjax_het.models import with_empty_parameter, with_logit_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import class_weighted_mean
from fedjax_het.sharing import share_all, whole_model
from fedjax_het.validation import NonNegative, validate_arguments


@validate_arguments
def feddistill(
    weight: Annotated[NonNegative, LogUniform(0.1, 10.0)] = 1.0,
    *,
    average_models: bool = False,
    form: Literal["clean", "released"] = "clean",
    **training: Unpack[Training],
) -> Algorithm:
    """FedDistill: personal models learn from the mean logits of each class.

        min  CE + weight 1/B sum_b KL( softmax(m_{y_b}) || softmax(z_b) ),   0 for classes without m_c
        m_c <- 1/|N_c| sum_{i in N_c} m_ic,   m_ic: the mean logits of client i's examples of class c, N_c: its owners

    Communication: down m, up m_i with counts: C^2 numbers, independent of the size of the model. Client state: the full
    model.

    m_ic are means over the batches of the round, each before its step. The evaluated server model is the mean of the
    personal models.
    Setting: 20 users, 10 a round, 200 rounds, 20 batches of 32 a round, SGD .01, MNIST (Dirichlet .1), EMNIST, CelebA.
    Differences from the released code (form="released"): its counts begin at 1 and its totals are never reset, so that
    logits shrink and mix all rounds, and a class that nobody has is pulled to the uniform distribution. A third
    party, HtFLlib, takes logits for probabilities, which is not reproduced. The original leaves a client's own logits
    out of its mean, which this code does not. A class that no client of a round has keeps its mean. All clients start
    from the same weights.

    Args:
        weight: Weight of the distillation (default 1). 0 is local training.
        average_models: Whether models are averaged too, as in the code's FedDistill-FL.
        form: "clean" (default), or "released", as above.
        training: Settings of local training, see `local_updates.sgd`.

    Raises:
        InputError: A number is out of range; when traced, examples do not have one label each.

    References:
        Jeong et al., Communication-Efficient On-Device Machine Learning: Federated Distillation and Augmentation under
        Non-IID Private Data, 2018. arXiv:1811.11479; code zhuangdizhu/FedGen.
    """
    is_clean = form == "clean"
    return Algorithm(
        objective=(cross_entropy(), logit_distillation(weight)),
        local_update=sgd(**training, gradient=gradient_with_logits(no_totals if is_clean else kept_totals)),
        memory={} if is_clean else totals_with_one_example(),
        reports={"logits": mean_logits()},
        published={"logits": class_weighted_mean("uniform", outline="logits")},
        aggregator=mean("uniform"),
        sharing=share_all if average_models else whole_model,
        adapt=lambda model: with_logit_shape(with_empty_parameter(model)),
    )
