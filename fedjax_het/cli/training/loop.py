"""The training loop: a simulation from the last checkpoint to the last round, and the records of its runs."""

import contextlib
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from fedjax_het import engine
from fedjax_het.cli import trackers
from fedjax_het.cli.configuration import privacy, record_privacy
from fedjax_het.cli.distributed.collectives import SINGLE, Processes
from fedjax_het.cli.training import terminal
from fedjax_het.cli.training.recorder import RunRecorder
from fedjax_het.types import State


class TrainingLoop:
    """The training of one run, or of several in one program.

    All processes train, evaluate and save; the first one writes everything else. At a stop: evaluate, write the metric
    lines, then the checkpoint, then show the lines in the trackers of config.live. A kill costs at most the rounds
    since the last checkpoint; later lines are dropped when the run resumes, and come out the same again.
    """

    def __init__(self, simulation: engine.Simulation, recorders: Sequence[RunRecorder], processes: Processes = SINGLE):
        """
        Args:
            simulation: the compiled simulation.
            recorders: one per run of the simulation, whose settings differ only in seeds and hyper-parameters.
            processes: the processes that train together.
        """
        self.simulation, self.recorders, self.processes = simulation, recorders, processes
        self.settings = settings = recorders[0].settings
        self.rounds = settings["rounds"]
        self.every = settings["checkpoint_every"] or self.rounds
        self._diagnose_every = settings["diagnose_every"] if settings["diagnostics"] else 0
        self._snapshot_seconds: list[float] = []
        self._running = list(recorders)  # without those that early stopping has ended
        self.stop_every = settings["checkpoint_every"], self._diagnose_every

    def run(self) -> None:
        """Train to the last round.

        Raises:
            InputError: A checkpoint cannot be used (before anything is written), or a tracker does not start.
        """
        state = self.simulation.start()
        done = self.processes.broadcast("done", min(recorder.done for recorder in self.recorders))
        if done:
            with self.processes.barrier("restored"):
                state = self._restore(state, done)
        self._too_many = self._find_too_many_attackers()
        seconds = 0.0
        if self.processes.is_first:
            seconds = max([recorder.rewind(done) for recorder in self.recorders])
        with contextlib.ExitStack() as stack:
            with self.processes.barrier("live"):
                opened = [stack.enter_context(recorder.start_trackers(seconds)) for recorder in self.recorders]
            self._began = time.perf_counter() - seconds
            state = self._train(state, done, opened)
            self._finish(self._running, state)

    def _finish(self, recorders: Sequence[RunRecorder], state: State) -> None:
        if recorders:
            evaluation, done = self.simulation.evaluate(state), int(np.asarray(state.server.round)[0])
            for recorder in recorders if self.processes.is_first else []:
                recorder.finish(evaluation, self._account(recorder, done))

    def _account(self, recorder: RunRecorder, done: int) -> dict[str, np.ndarray]:
        """The columns of per_client.csv on the privacy of each client's examples, [seeds, clients]."""
        if record_privacy.TABLE not in recorder.settings:
            return {}
        return {record_privacy.COLUMN: record_privacy.account_of(self.simulation, recorder.settings).epsilons(done)}

    def _restore(self, like: State, done: int) -> State:
        """Restore a checkpoint that all runs have, even if they were killed between saving one and the next."""
        parts = [recorder.restore(recorder.part(like), done) for recorder in self.recorders]
        if len(parts) == 1:
            return parts[0]
        return jax.tree.map(lambda x, *part: jax.device_put(jnp.concatenate(part), x.sharding), like, *parts)

    def _train(self, state: State, done: int, opened: Sequence[trackers.Trackers]) -> State:
        if not done:
            self._diagnose(state, 0)
        with terminal.show_progress(done, self.rounds) as progress:
            for tracker in opened:
                tracker.catch_up(progress.warn)
            self._finish_early(self._find_ended(done), done, state, progress)
            for stop in self.simulation.stops(done, *self.stop_every):
                if not self._running:
                    break
                state = self._advance(state, done, stop, progress)
                for tracker in opened:
                    tracker.catch_up(progress.warn)
                done = stop
        if self._diagnose_every:
            num, seconds = len(self._snapshot_seconds), sum(self._snapshot_seconds)
            compiling = f"{self.simulation.diagnosis_seconds:.1f} s of compiling"
            print(f"diagnostics: {num} snapshots of {seconds / max(num, 1):.2f} s each, after {compiling}")
        return state

    def _advance(self, state: State, done: int, stop: int, progress: terminal.ProgressDisplay) -> State:
        before, dropped = time.perf_counter(), np.array(state.counters.nonfinite)
        state, rounds = self.simulation.advance(state, stop - done)
        figures = {
            "train/loss": np.asarray(rounds.loss)[:, -1],
            "num_reporting": np.asarray(rounds.num_reporting)[:, -1],
            "num_dropped": np.asarray(state.counters.nonfinite),
            **self._count_traffic(state),
        }
        if rounds.num_late is not None:
            figures |= {
                "num_late": np.asarray(rounds.num_late)[:, -1],
                "virtual_seconds": np.asarray(state.counters.seconds),
            }
        if rounds.staleness is not None:
            figures["staleness"] = np.asarray(rounds.staleness).mean(axis=(1, 2))
        seconds_per_round = (time.perf_counter() - before) / (stop - done)
        if num_dropped := int(np.sum(figures["num_dropped"] - dropped)):
            progress.warn(f"{num_dropped} uploads of rounds {done + 1} to {stop} were not finite and were dropped")
        if num_rejected := int(np.sum(rounds.is_rejected)):
            progress.warn(
                f"{num_rejected} of rounds {done + 1} to {stop} had no effect: the server's result of finite uploads "
                "was not finite"
            )
        if (overflow := self.simulation.count_overflow(done, stop)) is not None and overflow.any():
            progress.warn(
                f"{int(overflow.sum())} clients that were drawn in rounds {done + 1} to {stop} found no place; more "
                "config.participation.slots would give them one, and a smaller epsilon"
            )
        if self.simulation.is_evaluated(stop):
            evaluation = self.simulation.evaluate(state)
            figures |= engine.flatten_evaluation(evaluation)
            if "privacy" in self.settings:
                spent = privacy.epsilon_after(self.settings, self.simulation.federation.num_clients, stop)
                figures[privacy.FIGURE] = np.full(len(figures["num_dropped"]), spent)
            if self._too_many is not None:
                figures["attackers/too_many"] = self._too_many[:, :stop].mean(axis=1)
            for recorder in self._running if self.processes.is_first else []:
                recorder.add(stop, time.perf_counter() - self._began, figures, evaluation)
        progress.show(stop, terminal.describe_round(figures, seconds_per_round))
        self._diagnose(state, stop)
        ended = self._find_ended(stop)
        for recorder in self._running:
            if stop == self.rounds or stop % self.every == 0 or recorder in ended:
                recorder.save(stop, state)
        self._finish_early(ended, stop, state, progress)
        return state

    def _find_ended(self, done: int) -> list[RunRecorder]:
        """Find the runs that early stopping ends after `done` rounds."""
        if self.recorders[0].stop is None:
            return []
        ends = self.processes.broadcast(f"ends {done}", [recorder.end for recorder in self._running])
        return [recorder for recorder, end in zip(self._running, ends, strict=True) if end is not None]

    def _finish_early(
        self, ended: Sequence[RunRecorder], done: int, state: State, progress: terminal.ProgressDisplay
    ) -> None:
        for recorder in ended:
            progress.tell(f"{recorder.directory.path}: training stops after round {done}, because {recorder.stop}")
        self._finish(ended, state)
        self._running = [recorder for recorder in self._running if recorder not in ended]

    def _diagnose(self, state: State, done: int) -> None:
        """Write the diagnostics if they are due: before the first round, then at an interval."""
        if not self._diagnose_every or done % self._diagnose_every or done == self.rounds:
            return
        start = time.perf_counter()
        values = self.simulation.diagnose(state)
        self._snapshot_seconds.append(time.perf_counter() - start)
        for recorder in self._running if self.processes.is_first else []:
            recorder.add_snapshot(done, values, self._snapshot_seconds[-1])

    def _find_too_many_attackers(self) -> np.ndarray | None:
        """[runs, rounds] whether a round has more attackers than the `num_attackers` of the robust rule.

        None without attacks or without `num_attackers`.
        """
        declared = (self.settings.get("aggregator") or {}).get("num_attackers")
        if declared is None or (attackers := self.simulation.count_attackers()) is None:
            return None
        return attackers > declared

    def _count_traffic(self, state: State) -> dict[str, np.ndarray]:
        """Count the bytes that all clients have received and sent since the first round, dropped updates included.

        Polled clients, and all clients in the opening rounds, receive the model and send their answer, whether they
        train or not. With an uplink, the bits of what has been sent too: quantized messages end within a byte.
        """
        num_uploads = np.asarray(state.counters.reports, np.int64) + np.asarray(state.counters.nonfinite)
        facts, counted = self.simulation.cost, state.counters.polled
        num_polled = np.zeros_like(num_uploads) if counted is None else np.asarray(counted, np.int64)
        num_downloads = num_uploads if counted is None else num_polled
        num_asked = np.minimum(np.asarray(state.server.round, np.int64) * facts.cohort_size, facts.num_clients)
        num_asked = num_asked if facts.bytes_opening else np.zeros_like(num_uploads)
        bytes_answered = num_polled * facts.bytes_polled + num_asked * facts.bytes_opening
        traffic = {
            "traffic/down": (num_downloads + num_asked) * facts.bytes_down,
            "traffic/up": num_uploads * facts.bytes_up + bytes_answered,
        }
        has_uplink = bool(self.recorders[0].settings.get("uplink"))
        bits_up = num_uploads * facts.bits_up + 8 * bytes_answered
        return traffic | ({"traffic/bits_up": bits_up} if has_uplink else {})
