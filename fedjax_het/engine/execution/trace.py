"""Tracing of a round: checks the shapes and consistency of an algorithm's slots before compilation."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType
from typing import NamedTuple, NoReturn

import jax
import numpy as np
from flax import linen as nn

from fedjax_het import tree
from fedjax_het._internal.keys import make_key
from fedjax_het._internal.machine_memory import describe_bytes
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.data.preparation import has_means_of_both_signs
from fedjax_het.engine.execution.outputs import check_kind, check_outputs
from fedjax_het.engine.execution.run_spec import RunSpec
from fedjax_het.engine.parallel.compilation import replicated_shapes
from fedjax_het.engine.parallel.layout import Layout
from fedjax_het.engine.parallel.runs import without_dtype_warnings
from fedjax_het.engine.round import client_step, opening
from fedjax_het.engine.round.client_step import Cohort
from fedjax_het.engine.round.program import Round, with_population
from fedjax_het.engine.round.records import RoundMessages, RoundMetrics
from fedjax_het.engine.round.uplink import hides_examples
from fedjax_het.errors import InputError, nearest
from fedjax_het.models import StaticBatchNorm
from fedjax_het.problem import Problem
from fedjax_het.types import Array, ClientData, Key, PyTree, ServerState, State, Variables
from fedjax_het.validation import LARGEST_COUNT, check_clients


class RoundShapes(NamedTuple):
    """The shapes of the results of one round."""

    state: State
    metrics: RoundMetrics
    messages: RoundMessages


class TracedRound(NamedTuple):
    """A run in one layout, traced and checked; nothing is compiled."""

    spec: RunSpec
    layout: Layout
    round: Round
    train: Callable  # (hyperparameters, *arguments of Round.train); compilation reuses the checked trace
    shapes: RoundShapes  # for one run
    hyper_parameters: Mapping[str, Array] = MappingProxyType({})

    def with_hyper_parameters(self, hyper_parameters: Mapping[str, Array]) -> "TracedRound":
        """Build the round from hyperparameters of a sweep, which may be tracers; {} for a single algorithm."""
        round = (
            self.spec.round(self.layout, self.spec.sweep.build(hyper_parameters)) if hyper_parameters else self.round
        )
        return self._replace(round=round, hyper_parameters=hyper_parameters)


def trace_round(spec: RunSpec, layout: Layout) -> TracedRound:
    """Trace a round, and raise an error for invalid combinations.

    Args:
        spec: The run.
        layout: The layout of the client axis.

    Returns:
        The traced round.

    Raises:
        InputError: A published quantity is not reported by clients; a part reads a quantity that no slot provides; a
            round changes the shape of a state; public examples are missing, or no slot reads them; the outputs of the
            model or the algorithm do not fit the kind of labels; batches of one
            example with batch normalization; amplitude normalization of images with means of both signs; moments of
            clients' examples with differential privacy; no client has training examples; a hyperparameter cannot be
            swept; an option refers to a client outside the federation.
    """
    round, federation = spec.round(layout), spec.federation
    provided = [*spec.algorithm.survey, *spec.algorithm.reports]
    for name in spec.algorithm.published:
        if name not in provided:
            raise InputError(f"published['{name}'] summarizes a value no client reports. {nearest(name, provided)}")
    if not np.any(federation.largest_counts("train")):
        raise InputError(f"{federation.name}: no client has a training example. Lower the held-out fractions.")
    spec.participation.check_run(spec.rounds)
    opening.check_rounds(spec.algorithm, spec.participation, spec.num_clients, spec.rounds)
    for algorithm in spec.sweep.algorithms:
        _check_steps(algorithm, federation)
        _check_named_clients(algorithm, federation)
        _check_record_privacy(algorithm, federation)
        for stage in algorithm.uplink:
            stage.check_run(spec.participation.min_separation, spec.rounds)
    _check_public(spec.algorithm, federation)
    check_kind(spec.algorithm, round.problem, federation)
    _check_moments(spec.algorithm, federation)
    before = jax.eval_shape(round.init, *_init_arguments(spec, layout))
    _check_batch_norm(spec.algorithm, round.problem, federation)
    min_bytes = tree.num_bytes(before.server) + tree.num_bytes(before.clients) // spec.num_clients
    if min_bytes > layout.device_memory:
        raise InputError(
            f"memory: the states of the server and of one client take {describe_bytes(min_bytes)}, but a device has "
            f"{describe_bytes(layout.device_memory)}. Use a smaller model or smaller client states."
        )
    _check_amplitude(before.server.shared, federation)
    try:
        train, initial, shapes = _trace(spec, layout, round)
    except (ValueError, TypeError) as error:
        check_outputs(round.problem, federation)  # traces the model, and explains most of these errors
        if not spec.sweep.values:
            raise
        _check_sweep(spec, layout, error)
    _check_states(spec, layout, initial)
    if (changed := _find_shape_change(initial, shapes.state)) is not None:
        raise InputError(f"a round changes the shape of its own state: {changed}. Slots must keep these shapes.")
    return TracedRound(spec, layout, round, train, shapes)


def _trace(spec: RunSpec, layout: Layout, round: Round) -> tuple[Callable, State, RoundShapes]:
    """(`TracedRound.train`, shapes of the initial state, of a round); for a sweep, the round is built from tracers."""
    (key, data), runs = _init_arguments(spec, layout), spec.hyper_parameters(layout)

    def build(hyper_parameters: Mapping[str, Array]) -> Round:
        return spec.round(layout, spec.sweep.build(hyper_parameters)) if hyper_parameters else round

    @jax.jit
    def train(hyper_parameters: Mapping[str, Array], *arguments: PyTree) -> tuple[State, RoundMetrics, RoundMessages]:
        return build(hyper_parameters).train(*arguments)

    def first(runs: Mapping[str, Array]) -> dict[str, Array]:
        return {name: values[0] for name, values in runs.items()}

    @without_dtype_warnings
    def init(runs: Mapping[str, Array], key: Key, data: ClientData) -> State:
        return build(first(runs)).init(key, data)

    def draw(key: Key, server: ServerState) -> Cohort:
        events = jax.tree.map(lambda x: x[0], spec.schedule)
        return round.draw(key, server.round, events, server.participation)

    @without_dtype_warnings
    def trace(runs: Mapping[str, Array], state: State, cohort: Cohort, data: ClientData, key: Key) -> RoundShapes:
        with_everyone = with_population(partial(train, first(runs)), spec.participation.is_everyone, layout)
        return RoundShapes(*with_everyone(state, cohort, client_step.cohort_data(data, cohort), key))

    initial = jax.eval_shape(init, runs, key, data) if runs else jax.eval_shape(round.init, key, data)
    arguments = replicated_shapes((initial, jax.eval_shape(draw, key, initial.server), data, key), layout)
    return train, initial, jax.eval_shape(trace, runs, *arguments)


def _init_arguments(spec: RunSpec, layout: Layout) -> tuple[Key, ClientData]:
    """The shapes of the arguments of `Round.init`.

    Compiled programs use traces only of arguments on the same devices.
    """
    return replicated_shapes((make_key(0), spec.federation.data), layout)


def _check_sweep(spec: RunSpec, layout: Layout, error: Exception) -> NoReturn:
    """Raise InputError with the hyperparameters that cannot be traced, or with the error for an invalid value."""
    trace_round(replace(spec, sweep=spec.sweep.restrict()), layout)
    restricted_specs = {name: replace(spec, sweep=spec.sweep.restrict(name)) for name in spec.sweep.values}
    names = [name for name, restricted in restricted_specs.items() if not _is_traceable(restricted, layout)]
    raise InputError(
        f"{', '.join(names) or ', '.join(spec.sweep.values)}: cannot be swept, since the program depends on its value: "
        f"{str(error).splitlines()[0]} Run a simulation for each value."
    ) from error


def _is_traceable(spec: RunSpec, layout: Layout) -> bool:
    try:
        _trace(spec, layout, spec.round(layout))
    except (ValueError, TypeError):
        return False
    return True


def _check_states(spec: RunSpec, layout: Layout, initial: State) -> None:
    """Raise InputError if a run of a sweep has another state than the same run alone, since neither could continue
    from checkpoints of the other."""
    for index, algorithm in enumerate(spec.sweep.algorithms if spec.sweep.values else ()):
        own_state = jax.eval_shape(spec.round(layout, algorithm).init, make_key(0), spec.federation.data)
        if differing := sorted(tree.describe_leaves(own_state).items() ^ tree.describe_leaves(initial).items()):
            values = ", ".join(f"{name}={swept[index]}" for name, swept in spec.sweep.values.items())
            raise InputError(
                f"{values}: cannot be swept, because the same run outside a sweep has a different state, such as "
                f"{differing[0][0]}. Run a separate simulation for it."
            )


def _check_steps(algorithm: Algorithm, federation: Federation) -> None:
    max_steps = int(np.max(algorithm.local_update.num_steps(np.asarray(federation.largest_counts("train"), np.int64))))
    if max_steps > LARGEST_COUNT:
        raise InputError(
            f"epochs: {max_steps} steps per client and round exceed the limit of {LARGEST_COUNT}. Use fewer epochs."
        )


def _check_named_clients(algorithm: Algorithm, federation: Federation) -> None:
    parts = [("aggregator", algorithm.aggregator), *(("uplink", stage) for stage in algorithm.uplink)]
    for where, part in parts:
        for option, clients in part.named_clients:
            check_clients(f"{where}: {option}", clients, federation.num_clients)
            if idle := [client for client in clients if not federation.largest_counts("train")[client]]:
                raise InputError(f"{where}: {option}: client {idle[0]} has no training example. Name another client.")


def _check_public(algorithm: Algorithm, federation: Federation) -> None:
    """Raise InputError unless there are public examples if and only if a slot reads them."""
    has_public = federation.examples.public is not None
    if algorithm.reads_public and not has_public:
        raise InputError(
            "public: the algorithm reads public examples, and the federation has none. Give it some: federate(..., "
            "public=0.1), or config.data.public.name='held_out'."
        )
    if has_public and not algorithm.reads_public:
        raise InputError(
            "public: has no effect, because the algorithm reads no public examples. Leave them out, or set "
            "reads_public=True for slots of your own that read them."
        )


def _check_moments(algorithm: Algorithm, federation: Federation) -> None:
    prepare = federation.prepare
    is_private = hides_examples(algorithm.uplink) or algorithm.record_privacy is not None
    if is_private and prepare.moments is not None and not prepare.are_moments_public:
        raise InputError(
            "standardise: the moments of all clients' examples would be published without noise, which no guarantee "
            "covers. Set known constants, standardise=[(mean, deviation), ...] per channel, or standardise=False."
        )
    allowed = ("constant",) if algorithm.record_privacy is not None else ("constant", "client")
    if is_private and federation.units is not None and federation.units.origin not in allowed:
        raise InputError(
            "standardise_targets: the moments of examples would be used without noise, which no guarantee covers. Set "
            "'none' (for time series scale='none')" + (", or 'client'." if len(allowed) > 1 else ".")
        )


def _check_record_privacy(algorithm: Algorithm, federation: Federation) -> None:
    if algorithm.record_privacy is None:
        return
    algorithm.record_privacy.multipliers(federation.num_clients)  # as many as clients, or one
    if federation.phases:
        raise InputError(
            "record_privacy: the data of clients change with the round, and with them the probability of each example. "
            "The accountant has no bound for that. Use data that do not change."
        )


def _check_batch_norm(algorithm: Algorithm, problem: Problem, federation: Federation) -> None:
    example = jax.eval_shape(lambda inputs: federation.prepare(inputs[:1]), federation.data.examples.inputs)
    layers = problem.model.layers(example)
    norms = [path for path, layer in layers.items() if issubclass(layer, nn.BatchNorm)]
    is_static = any(issubclass(layer, StaticBatchNorm) for layer in layers.values())
    if is_static and (algorithm.models or problem.model.groups or algorithm.adapt is not Algorithm.adapt):
        raise InputError(
            "model: norm='static' needs a single network, which the algorithm does not change. Use another norm."
        )
    if norms and algorithm.record_privacy:
        raise InputError(
            f"record_privacy: batch normalization ({norms[0]}) mixes the examples of a batch, which then have no "
            "gradients of their own. Use a model with norm='group' or 'none'."
        )
    if norms and algorithm.local_update.batch_size == 1:
        raise InputError(
            f"batch_size: batches of one example have no variance for batch normalisation ({norms[0]}) to divide by. "
            "Use batch_size of at least 2, or a model with norm='group' or 'none'."
        )


def _check_amplitude(shared: Variables, federation: Federation) -> None:
    """Amplitude replacement preserves the phase, which includes the sign of an image's mean: means of both signs would
    become +a and -a instead of equal."""
    if "amplitude" not in shared and "images" not in shared.get("outline", {}):
        return
    rows = federation.data.train
    positions = np.concatenate([index[:count] for index, count in zip(rows.index, rows.count, strict=True)])
    positions %= len(federation.examples.labels)  # also under other concepts
    if has_means_of_both_signs(federation.prepare, np.asarray(federation.examples.inputs), positions):
        reason, fix = "the images' means have both signs", "Shift the images so that no mean is negative, e.g. to 0..1"
        if federation.prepare.moments is not None:
            reason, fix = "standardised images have means of both signs", "Set standardise=False: pixels in 0..1"
        raise InputError(
            f"standardise: {reason}. Amplitude replacement keeps phases and cannot make these means equal. "
            f"{fix}, or use an algorithm that does not change amplitudes, such as harmofl with band=None."
        )


def _find_shape_change(before: State, after: State) -> str | None:
    if (old := jax.tree.structure(before)) != (new := jax.tree.structure(after)):
        return f"{old} became {new}"
    new_types = tree.describe_leaves(after)
    for path, old_type in tree.describe_leaves(before).items():
        if new_types[path] != old_type:
            return f"{path} is {old_type}, then {new_types[path]}"
    return None
