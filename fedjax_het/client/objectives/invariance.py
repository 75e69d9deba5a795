"""Everyone's examples should ask the same of the head (FedIIR)."""

import jax

from fedjax_het import tree
from fedjax_het.algorithm import Term
from fedjax_het.client.objectives.cross_entropy import cross_entropy
from fedjax_het.types import Array, ForwardPass, Params
from fedjax_het.validation import NonNegative, validate_arguments

_entropy = cross_entropy()


@validate_arguments
def invariance(gamma: NonNegative = 0.001, debias: bool = False) -> Term:
    """Pull the batch's gradient of the head towards everyone's, so that features mean the same to all clients.

        gamma || grad_head CE(batch) - gbar ||^2

    gbar stays fixed for the round; the term is differentiated through the gradient (second order), and so reaches the
    head and the features.   Reads: outputs.features, published["mean_gradient"] (`server.summaries.ema`): mean, and
    mass if debias.   gamma: the code's penalty, .01 (RotatedMNIST), .005 (VLCS), .001 (PACS), .0005 (Office-Home).
    debias: divide gbar by its mass 1 - decay^t; without it, as in the code, gbar starts at 0 and has a twentieth of
    its strength in the first round.
    Guo et al., Out-of-Distribution Generalization of Federated Learning via Implicit Invariant Relationships, ICML
    2023; official code YamingGuo98/FedIIR, domainbed/algorithms.py.
    """

    def invariance(forward: ForwardPass) -> Array:
        everyones = forward.view.received.published["mean_gradient"]
        target = everyones["mean"]
        if debias:
            mass = everyones["mass"]
            target = tree.scale(1.0 / jax.numpy.where(mass > 0, mass, 1.0), target)
        return gamma * tree.squared_norm(tree.subtract(gradient_of_head(forward), target))

    return invariance


def gradient_of_head(forward: ForwardPass) -> Params:
    """The gradient of the batch's cross-entropy by the shared leaves of params/classifier; it can be differentiated."""
    is_shared = set(tree.paths(forward.view.received.shared["params"].get("classifier", {})))
    whole = forward.params["classifier"]
    _, head = tree.partition(whole, is_shared.__contains__)

    def loss(head: Params) -> Array:
        params = forward.params | {"classifier": tree.merge(whole, head)}
        logits = forward.problem.model.classify(params, forward.outputs.features)
        return _entropy(forward._replace(params=params, outputs=forward.outputs._replace(logits=logits)))

    return jax.grad(loss)(head)
