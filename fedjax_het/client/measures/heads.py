"""What a client tells of its own head, so that the server can mix heads (FedPAC)."""

import jax.numpy as jnp

from fedjax_het import tree
from fedjax_het.algorithm import Problem
from fedjax_het.client.measures.classes import ClassStatistics
from fedjax_het.types import ClientView, Named, Variables


def variance_and_means(classes: ClassStatistics) -> Named:
    """How far a head trained on this client's n examples is off by chance, and what it is trained towards.

        H[k] = q_k mu_k,   V = 1/n (mean |f|^2 - sum_k |H[k]|^2),   q_k: share of class k, mu_k: its mean feature

    Shapes: {"variance" [], "means" [class, feature]}; all zero without examples.
    """
    num_examples = jnp.maximum(jnp.sum(classes.counts), 1)
    means = classes.means * (classes.counts / num_examples)[:, None]
    spread = jnp.maximum(classes.square - jnp.sum(jnp.square(means)), 0)
    return {"variance": spread / num_examples, "means": means}


def head_statistics(problem: Problem, view: ClientView) -> Named:
    """`variance_and_means` of what the client measured before training.

    Reads: answers["classes"] (`class_statistics`).
    Xu, Tong and Huang, FedPAC, ICLR 2023, section 4; code JianXu95/FedPAC, methods/fedpac.py.
    """
    return variance_and_means(view.answers["classes"])


def own_head(problem: Problem, view: ClientView) -> Variables:
    """The leaves under params/classifier of view.local that are personal; none where the head is shared."""
    shared = set(tree.paths(view.received.shared))
    return tree.partition(view.local, lambda path: path.startswith("params/classifier/") and path not in shared)[1]
