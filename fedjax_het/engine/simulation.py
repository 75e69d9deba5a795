"""Whole trainings: rounds compiled into one call between evaluations, several seeds side by side."""

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import tree
from fedjax_het.algorithm import Algorithm
from fedjax_het.data.federation import Federation
from fedjax_het.engine import cost, placement, tuning, wiring
from fedjax_het.engine.evaluation import Evaluation, held_out, make_evaluation
from fedjax_het.engine.layout import Layout, vmapped
from fedjax_het.engine.participation import Participation, everyone, uniformly
from fedjax_het.engine.round import RoundMetrics, make_round
from fedjax_het.errors import InputError, NonFiniteError
from fedjax_het.types import Array, ClientData, Key, Model, State

ON_NONFINITE = ("drop", "raise")
AUTO = "auto"
_EVALUATION_BATCH = 256


class Simulation:
    """A training that is wired, checked and compiled, twice: its rounds, and its evaluation.

    The leaves of every state, metric and evaluation that come out carry a leading [num_seeds] axis. Seed s of the run
    is `seed + s`: initial weights, cohorts and batches follow from it; who has which data does not.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        model: Model,
        federation: Federation,
        *,
        rounds: int,
        cohort_size: int | None = None,
        participation: Participation | None = None,
        layout: Layout | str = vmapped,
        seed: int = 0,
        num_seeds: int = 1,
        evaluate_every: int = 10,
        on_nonfinite: str = "drop",
    ):
        """Wire, check and compile.

        cohort_size: so many clients a round, drawn uniformly; None is everyone.   participation: any other rule.
        layout: "auto" times a few and takes the quickest; `choice` tells which and why, and is None otherwise.
        Raises InputError, before anything is compiled, for what cannot work.
        """
        for name, value in {"rounds": rounds, "num_seeds": num_seeds, "evaluate_every": evaluate_every}.items():
            if value < 1:
                raise InputError(f"{name}: must be at least 1, not {value}.")
        if on_nonfinite not in ON_NONFINITE:
            raise InputError(f"on_nonfinite: must be one of {', '.join(ON_NONFINITE)}, not '{on_nonfinite}'.")
        if isinstance(layout, str) and layout != AUTO:
            raise InputError(f"layout: a Layout or '{AUTO}', not '{layout}'.")
        self.algorithm, self.federation = algorithm, federation
        self.rounds, self.evaluate_every, self.on_nonfinite = rounds, evaluate_every, on_nonfinite
        self.num_seeds = num_seeds
        self._participation = participation or (everyone() if cohort_size is None else uniformly(cohort_size))
        self._longest = min(evaluate_every, rounds)
        options = {"participation": self._participation, "prepare": federation.prepare, "augment": federation.augment}
        self.choice = None
        if layout == AUTO:
            # What cannot work is not worth timing: looked at first, on no hardware.
            unplaced = make_round(algorithm, model, federation.num_clients, **options)
            wiring.check(algorithm, unplaced.problem, unplaced.init, unplaced.explain, federation)
            self.choice = tuning.quickest(algorithm, model, federation, self._participation, rounds, seed)
        self.layout = self.choice.layout if self.choice else layout
        self._round = make_round(algorithm, model, federation.num_clients, layout=self.layout, **options)
        # Traced once, here: the check and the rounds' program read the same trace.
        self._step = jax.jit(self._round.explain)
        self._shapes = wiring.check(algorithm, self._round.problem, self._round.init, self._step, federation)
        self._keys = self.layout.place(jax.vmap(jax.random.key)(seed + jnp.arange(num_seeds)))
        self._data = self.layout.place(federation.data)
        self._compile()

    # ---- running -----------------------------------------------------------------------------------------------------
    def start(self) -> State:
        """The state before round 0."""
        return self._init(self._keys, self._data)

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """So many rounds in one call; the given state is consumed. Metrics have leaves [num_seeds, num_rounds, ...].

        Raises NonFiniteError, with round and clients, if an upload was not finite and the run is to stop for that.
        """
        if not 1 <= num_rounds <= self._longest:
            raise ValueError(f"advance takes 1 to {self._longest} rounds at a time, not {num_rounds}")
        first = int(np.asarray(state.server.round)[0])
        state, metrics = self._advance(state, self._data, self._keys, self.layout.place(np.int32(num_rounds)))
        metrics = jax.tree.map(lambda x: np.asarray(x)[:, :num_rounds], metrics)
        if self.on_nonfinite == "raise":
            _stop_at_nonfinite(metrics, first)
        return state, metrics

    def evaluate(self, state: State) -> Evaluation:
        """Everything that is held out, in numpy."""
        return jax.tree.map(np.asarray, self._evaluate(state, self._data.examples, self._held_out, self._data.test))

    def stops(self, done: int = 0, also_every: int = 0) -> Iterator[int]:
        """The round numbers after `done` at which a run pauses: multiples of both intervals, and the end."""
        while done < self.rounds:
            ends = [(done // every + 1) * every for every in (self.evaluate_every, also_every) if every]
            done = min([*ends, self.rounds])
            yield done

    def is_evaluated(self, round: int) -> bool:
        return round % self.evaluate_every == 0 or round == self.rounds

    # ---- building ----------------------------------------------------------------------------------------------------
    def _compile(self) -> None:
        held, groups = held_out(self.federation, _EVALUATION_BATCH)
        self._held_out = self.layout.place(held)
        evaluate = make_evaluation(self._round.problem, groups, self.layout, _EVALUATION_BATCH)
        at_rest, everywhere = placement.of_state(self.layout, has_seeds=True), self.layout.sharding
        start = time.perf_counter()
        init = self._over_seeds(placement.init(self._round.init, self.layout), (0, None))
        self._init = self.layout.jit(init, at_rest)
        state = jax.eval_shape(self._init, self._keys, self._data)
        state = placement.described(state, self.layout, has_seeds=True)
        advance = self._over_seeds(self._block, (0, None, 0, None))
        advance = self.layout.jit(advance, (at_rest, everywhere), donate_argnums=0)
        self._advance = advance.lower(state, self._data, self._keys, self.layout.place(np.int32(1))).compile()
        evaluate = self.layout.jit(self._over_seeds(evaluate, (0, None, None, None)), everywhere)
        self._evaluate = evaluate.lower(state, self._data.examples, self._held_out, self._data.test).compile()
        self.facts = cost.facts(
            self.algorithm, self.federation, self._shapes, self._advance, time.perf_counter() - start
        )

    def _over_seeds(self, function, axes: tuple):
        """vmap over seeds; a single seed is not vmapped, which would cost it a batched program."""
        if self.num_seeds > 1:
            return jax.vmap(function, in_axes=axes)

        def single(*arguments):
            first = [
                jax.tree.map(lambda x: x[0], argument) if axis == 0 else argument
                for argument, axis in zip(arguments, axes, strict=True)
            ]
            return jax.tree.map(lambda x: x[None], function(*first))

        return single

    def _block(self, state: State, data: ClientData, key: Key, num_rounds: Array) -> tuple[State, RoundMetrics]:
        """`num_rounds` rounds in a loop of the program; metrics are kept for the longest block."""
        empty = jax.tree.map(lambda x: jnp.zeros((self._longest, *x.shape), x.dtype), self._shapes[1])

        def one(index: Array, carry: tuple[State, RoundMetrics]) -> tuple[State, RoundMetrics]:
            state, metrics, _ = self._step(carry[0], data, key)
            return state, tree.put(carry[1], index, metrics)

        return jax.lax.fori_loop(0, num_rounds, one, (state, empty))


def _stop_at_nonfinite(metrics: RoundMetrics, first: int) -> None:
    if not metrics.is_nonfinite.any():
        return
    seed, offset, _ = np.argwhere(metrics.is_nonfinite)[0]
    clients = metrics.cohort[seed, offset][metrics.is_nonfinite[seed, offset]].tolist()
    raise NonFiniteError(
        f"round {first + offset}: clients {clients} sent NaN or infinity. Lower the learning rate, look at their "
        "data, or let on_nonfinite='drop' leave them out."
    )
