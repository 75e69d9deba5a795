"""FedMD."""

from typing import Annotated, Unpack

import optax

from fedjax_het.algorithm import Algorithm
from fedjax_het.annotations import LogUniform
from fedjax_het.client.local_updates import Training, pop_optimizer, refuse_only, sequential, sgd
from fedjax_het.client.objectives import cross_entropy
from fedjax_het.client.public import Distance, digest, public_logits
from fedjax_het.errors import InputError
from fedjax_het.models import with_empty_parameter, with_logit_shape
from fedjax_het.server.aggregators import mean
from fedjax_het.server.summaries import mean_logits
from fedjax_het.sharing import whole_model
from fedjax_het.validation import Count, NonNegative, validate_arguments


@validate_arguments
def fedmd(
    sample_size: Count = 256,
    digest_epochs: Count = 1,
    digest_batch_size: Count = 256,
    digest_learning_rate: Annotated[NonNegative, LogUniform(1e-4, 1.0)] | None = None,
    *,
    distance: Distance = "absolute",
    **training: Unpack[Training],
) -> Algorithm:
    """FedMD: personal models learn from their mean logits on public examples.

        m <- 1/|S| sum_S z_i,   z_i: the logits of client i's model on the first public examples of the round
        digest:   min  mean |z - m|  on these examples,   revisit:  min  CE on the client's own

    Communication: down m, up z_i: C numbers per public example, independent of the size of the model. Client state:
    the full model. Reads public examples, without their labels.

    The evaluated server model is the mean of the personal models.
    Setting: CIFAR-10 as public examples, 5000 a round, 10 clients with classes of CIFAR-100, all in every round, digest
    1 epoch of batches of 256, revisit 4 epochs of batches of 5, Adam 1e-3, 20 rounds.
    Differences from the authors' code: there, clients begin with training on labeled public examples, and then on their
    own; optimizers are kept between rounds, and the digest's batches are shuffled again; models are tested between
    digest and revisit. The absolute distance is its compile option. All clients start from the same weights.

    Args:
        sample_size: The number of public examples per round (default 256; 5000 in the paper).
        digest_epochs: The number of epochs of the digest (default 1).
        digest_batch_size: The number of public examples per step (default 256).
        digest_learning_rate: The learning rate of the digest. None: that of the revisit.
        distance: The mean "absolute" (default) or "squared" difference of logits, or "kl" of their softmax.
        training: Settings of local training (revisit), see `local_updates.sgd`; the digest uses the same optimizer.

    Raises:
        InputError: `only` is given, or a number is out of range; before the first round, there are too few public
            examples.

    References:
        Li and Wang, FedMD: Heterogenous Federated Learning via Model Distillation, 2019. arXiv:1910.03581; code
        diogenes0319/FedMD_clean.
    """
    refuse_only("the digest trains all parameters", training)
    own: Training = {**training}
    if digest_learning_rate is not None:
        if isinstance(own.get("optimizer"), optax.GradientTransformation):
            raise InputError("digest_learning_rate: the given optimizer has its own learning rate. Remove one of them.")
        own["learning_rate"] = digest_learning_rate
    schedule = own.get("learning_rate_schedule")
    options = {"batch_size": digest_batch_size, "epochs": digest_epochs, "distance": distance, "schedule": schedule}
    return Algorithm(
        objective=(cross_entropy(),),
        local_update=sequential(digest(pop_optimizer(own), sample_size, **options), sgd(**training)),
        survey={"logits": public_logits(sample_size, digest_batch_size)},
        published={"logits": mean_logits(sample_size)},
        aggregator=mean("uniform"),
        sharing=whole_model,
        adapt=lambda model: with_logit_shape(with_empty_parameter(model)),
        reads_public=True,
        reads_classes=distance == "kl",
    )
