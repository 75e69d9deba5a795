"""Views of clients and servers, and forward passes, in which everything that a test does not give is empty."""

import jax.numpy as jnp
import numpy as np

from fedjax_het.engine.parallel.update_stack import StackedUpdates
from fedjax_het.problem import ForwardPass, SlotView
from fedjax_het.types import Batch, Broadcast, ClientView, Named, Outputs, PyTree, ServerView, Upload, Variables


def client_view(shared: Variables | None = None, published: Named | None = None, round: int = 0, **known) -> ClientView:
    """Of a client that starts from `shared`; `known` are other fields of the view."""
    start = shared or {}
    received = Broadcast(jnp.asarray(round), start, SlotView("published", published or {}))
    empty = ClientView(received, {}, {}, None, start, start, (), {}, jnp.zeros(()))
    return empty._replace(**known)


def forward_pass(features, labels, logits=None, mask=None, **known) -> ForwardPass:
    """Of a batch whose inputs are its features; logits are the features, and everything counts, unless given."""
    mask = jnp.ones(len(labels)) if mask is None else mask
    outputs = Outputs(features, features if logits is None else logits, {})
    empty = ForwardPass(None, {}, {}, outputs, Batch(features, jnp.asarray(labels), mask), None, None)
    return empty._replace(**known)


def server_view(
    num_clients: int,
    reports: Named | None = None,
    updates: PyTree | None = None,
    shared: Variables | None = None,
    num_examples: np.ndarray | None = None,
    round: int = 0,
) -> ServerView:
    """With everyone present who has examples: one each, unless given. Updates have leaves [clients, ...]."""
    counts = jnp.ones(num_clients) if num_examples is None else jnp.asarray(num_examples, float)
    uploads = Upload({}, reports or {}, counts, jnp.ones(num_clients))
    received = Broadcast(jnp.asarray(round), {"params": {}} if shared is None else shared, {})
    stack = StackedUpdates({"params": {}} if updates is None else updates)
    return ServerView(received, uploads, jnp.arange(num_clients), counts > 0, num_clients, stack)
