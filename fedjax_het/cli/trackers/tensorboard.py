"""Tracking with TensorBoard: one event file per seed in RUN/tensorboard/seed_0, with the config as hyper-parameters.

The files are written again whenever the run starts, from the lines of metrics.jsonl and diagnostics.jsonl.
tensorboardX's synchronous writer is used, not its SummaryWriter, whose thread ends silently on an error of the file
system; a caller that adds to its queue then waits forever.
"""

import shutil
from collections.abc import Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from fedjax_het.cli.runs.records import flatten
from fedjax_het.cli.trackers import TrackedRun


class TensorBoard:
    def __init__(self, run: TrackedRun):
        self._seeds = {seed: _SeedWriter(run, seed) for seed in run.seeds}

    def write(self, round: int, seed: int, figures: Mapping[str, float]) -> None:
        self._seeds[seed].write(round, figures)

    def close(self, is_complete: bool) -> None:
        for writer in self._seeds.values():
            writer.close(is_complete)


class _SeedWriter:
    """One seed, a run in TensorBoard's sense. Event times are those of the run, without interruptions."""

    def __init__(self, run: TrackedRun, seed: int):
        folder = run.directory / "tensorboard" / f"seed_{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._start_time, self._seconds, self._file = run.start_time, 0.0, EventsWriter(str(folder / "events"))
        # A running TensorBoard then discards what it has read from the earlier file.
        self._add(session_log=SessionLog(status=SessionLog.START))
        # Without the record of the experiment TensorBoard finds all options of all runs that it compares.
        _, start, self._end = hparams(_to_scalars(run.hyperparameters(seed)), {})
        self._add(summary=start)
        self._file.flush()

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        self._seconds = figures.get("seconds", self._seconds)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(step=round, summary=Summary(value=values))
        self._file.flush()

    def close(self, is_complete: bool) -> None:
        if is_complete:
            self._add(summary=self._end)
        self._file.close()

    def _add(self, **event: Any) -> None:
        self._file.write_event(Event(wall_time=self._start_time + self._seconds, **event))


def _to_scalars(settings: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """{"algorithm.mu": 0.1, "model.hidden": "(64,)", ...}"""
    return {
        key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in flatten(settings).items()
    }


open = TensorBoard
