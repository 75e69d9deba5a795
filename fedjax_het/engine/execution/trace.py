"""Do the slots fit together? Asked before anything runs."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.machine_memory import describe_bytes
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.data.preparation import has_means_of_both_signs
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.round import client_step
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.population import with_population
from fedjax_het.engine.round.problem import LocalProblem
from fedjax_het.engine.round.program import Round, RoundMessages, RoundMetrics
from fedjax_het.errors import InputError, nearest
from fedjax_het.types import Array, ClientData, Context, Key, State, Variables
from fedjax_het.validation import LARGEST_COUNT


class RoundShapes(NamedTuple):
    """What comes out of a round, as shapes."""

    state: State
    metrics: RoundMetrics
    messages: RoundMessages


class TracedRound(NamedTuple):
    """A job in one layout, traced and checked. Nothing is compiled."""

    spec: RunSpec
    layout: Layout
    round: Round
    train: Callable  # round.train; whoever compiles it reads the trace that was checked
    shapes: RoundShapes  # of one run
    others: "tuple[TracedRound, ...]" = ()  # of the job's other algorithms, each for itself

    @property
    def all(self) -> "tuple[TracedRound, ...]":
        """One an algorithm, in their order."""
        return (self, *self.others)

    def cohort_only(
        self, state: State, cohort: Cohort, data: ClientData, key: Key, opaque_one: Array
    ) -> tuple[State, RoundMetrics]:
        """A round of a cohort, its states [slots, ...] in and out, as one turn of a loop.

        once: 1, which the compiler must not know. It fuses nothing across a loop's edge, so that a round is compiled to
        the same arithmetic, and gives the same bits, wherever its clients come from and go to.
        """
        num_padding = len(cohort.ids) - self.round.cohort_size
        metrics = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), self.shapes.metrics)

        def body(_: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
            after, metrics, _ = self.train(carry[0], cohort, data, key)
            padded = lambda x: jnp.pad(x, [(0, num_padding)] + [(0, 0)] * (x.ndim - 1))  # noqa: E731
            return after._replace(clients=jax.tree.map(padded, after.clients)), metrics

        return jax.lax.fori_loop(0, opaque_one, body, (state, metrics))

    def with_population(
        self, state: State, cohort: Cohort, data: ClientData, key: Key, opaque_one: Array
    ) -> tuple[State, RoundMetrics]:
        """The same, of which `state` has everyone's clients."""
        return with_population(self.cohort_only, self.spec.participation.is_everyone)(
            state, cohort, data, key, opaque_one
        )


def trace_round(spec: RunSpec, layout: Layout) -> TracedRound:
    """Trace a round's shapes, look for what would train but mean nothing, and hand the shapes on; of each algorithm.

    Raises InputError: a published quantity that nobody reports, a part that reads what no slot fills, a state whose
    shape a round would change, one-example batches under batch normalisation, amplitude normalisation of images whose
    means have both signs, nobody with a training example.
    """
    if len(spec.algorithms) > 1:
        first, *others = (trace_round(each, layout) for each in spec.split_by_algorithm())
        return first._replace(spec=spec, others=tuple(others))
    round, federation = spec.round(layout), spec.federation
    provided = [*spec.algorithm.survey, *spec.algorithm.reports]
    for name in spec.algorithm.published:
        if name not in provided:
            raise InputError(f"published['{name}'] condenses what nobody reports. {nearest(name, provided)}")
    if not np.any(np.asarray(federation.data.train.count)):
        raise InputError(f"{federation.name}: no client has a training example. Lower the held-out fractions.")
    _check_steps(spec.algorithm, federation)
    _check_batch_norm(spec.algorithm, round.problem, federation)
    train, key = jax.jit(round.train), jax.random.key(0)

    def explain(state: State, data: ClientData) -> tuple[State, RoundMetrics, RoundMessages]:
        cohort = round.draw(key, state.server.round)
        with_everyone = with_population(train, spec.participation.is_everyone)
        return with_everyone(state, cohort, client_step.cohort_data(data, cohort), key)

    before = jax.eval_shape(round.init, key, federation.data)
    least = tree.num_bytes(before.server) + tree.num_bytes(before.clients) // spec.num_clients
    if least > layout.device_memory:
        raise InputError(
            f"memory: the server's state and that of one client take {describe_bytes(least)}, and a device has "
            f"{describe_bytes(layout.device_memory)}. Take a smaller model, or let clients keep less."
        )
    _check_amplitude(before.server.shared, federation)
    try:
        shapes = RoundShapes(*jax.eval_shape(explain, before, federation.data))
    except (ValueError, TypeError):
        _check_outputs(round.problem, federation)  # which costs a trace of the model, and explains most of these
        raise
    if (changed := _find_shape_change(before, shapes.state)) is not None:
        raise InputError(f"a round changes the shape of its own state: {changed}. A slot must give back what it got.")
    return TracedRound(spec, layout, round, train, shapes)


def _check_steps(algorithm: Algorithm, federation: Federation) -> None:
    most = int(np.max(algorithm.local_update.num_steps(np.asarray(federation.data.train.count, np.int64))))
    if most > LARGEST_COUNT:
        raise InputError(
            f"epochs: they come to {most} steps of a client in a round, and {LARGEST_COUNT} can be counted. Take fewer."
        )


def _check_batch_norm(algorithm: Algorithm, problem: LocalProblem, federation: Federation) -> None:
    example = jax.eval_shape(lambda inputs: federation.prepare(inputs[:1]), federation.data.examples.inputs)
    norms = [path for path, layer in problem.model.layers(example).items() if issubclass(layer, nn.BatchNorm)]
    if norms and algorithm.local_update.batch_size == 1:
        raise InputError(
            f"batch_size: batches of one example have no variance for batch normalisation ({norms[0]}) to divide by. "
            "Take batch_size of at least 2, or a model with norm='group' or 'none'."
        )


def _check_amplitude(shared: Variables, federation: Federation) -> None:
    """The sign of an image's mean is phase, which amplitude normalisation leaves as it is: where the images' means have
    both signs, it makes them +a and -a instead of equal."""
    if "amplitude" not in shared:
        return
    rows = federation.data.train
    positions = np.concatenate([index[:count] for index, count in zip(rows.index, rows.count, strict=True)])
    if has_means_of_both_signs(federation.prepare, federation.examples.inputs, positions):
        which, mend = "the images' means have both signs", "Shift the images so that no mean is negative, to 0..1 say"
        if federation.prepare.moments is not None:
            which, mend = "standardised images have means of both signs", "Set standardise=False: pixels in 0..1"
        raise InputError(
            f"standardise: {which}, and amplitude normalisation, which keeps phases, cannot make them equal. {mend}, "
            "or take an algorithm without amplitude normalisation, such as harmofl with band=None."
        )


def _check_outputs(problem: LocalProblem, federation: Federation) -> None:
    """Raise InputError where the model's outputs and the labels are not both of classes, or both of masks."""
    model, key = problem.model, jax.random.key(0)

    def logits(inputs: Array) -> Array:
        inputs = federation.prepare(inputs[:1])
        variables = model.init(key, inputs)
        context = Context(jnp.ones(1), jnp.zeros((), jnp.int32), key, False)
        return model.classify(variables["params"], model.encode(variables, inputs, context)[0][0])

    found, labels = jax.eval_shape(logits, federation.examples.inputs), federation.examples.labels
    if found.ndim != labels.ndim + 1:
        wanted = "masks, a class for each pixel" if labels.ndim > 1 else "one class for each example"
        kind = "segmentation, such as unet" if labels.ndim > 1 else "classification"
        raise InputError(
            f"config.model: {federation.name} has {wanted}, and the model's outputs are {found.shape[1:]} an example. "
            f"Take a model for {kind}."
        )


def _find_shape_change(before: State, after: State) -> str | None:
    if (old := jax.tree.structure(before)) != (new := jax.tree.structure(after)):
        return f"{old} became {new}"
    for (path, x), y in zip(jax.tree.leaves_with_path(before), jax.tree.leaves(after), strict=True):
        if (x.shape, x.dtype) != (y.shape, y.dtype):
            return f"{jax.tree_util.keystr(path)} is {x.dtype}{list(x.shape)}, then {y.dtype}{list(y.shape)}"
    return None
