"""TensorBoard: an event file a seed in RUN/tensorboard/seed_0, with the config as hyper-parameters.

The files are written anew whenever the run starts, from what metrics.jsonl and diagnostics.jsonl hold then.
tensorboardX's synchronous writer is used, not its SummaryWriter: the thread behind that dies of an error of the file
system without a word, and then whoever adds to its queue waits forever.
"""

import shutil
from collections.abc import Mapping
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary
from tensorboardX.summary import hparams

from ..runs.records import flatten
from . import TrackedRun


class TensorBoard:
    def __init__(self, run: TrackedRun):
        self._seeds = {seed: _Seed(run, seed) for seed in run.seeds}

    def write(self, round: int, seed: int, figures: Mapping[str, float]) -> None:
        self._seeds[seed].write(round, figures)

    def close(self, is_complete: bool) -> None:
        for each in self._seeds.values():
            each.close(is_complete)


class _Seed:
    """A run in TensorBoard's sense. An event's time is the run's own, so that "relative" leaves out interruptions."""

    def __init__(self, run: TrackedRun, seed: int):
        folder = run.directory / "tensorboard" / f"seed_{seed}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._began, self._seconds, self._file = run.began, 0.0, EventsWriter(str(folder / "events"))
        # A TensorBoard that is open meanwhile forgets what it read of the earlier file.
        self._add(session_log=SessionLog(status=SessionLog.START))
        # Without the experiment's record: TensorBoard then finds all options of all the runs that it compares.
        _, begins, self._ends = hparams(_plain(run.hyperparameters(seed)), {})
        self._add(summary=begins)
        self._file.flush()

    def write(self, round: int, figures: Mapping[str, float]) -> None:
        self._seconds = figures.get("seconds", self._seconds)
        values = [Summary.Value(tag=name, simple_value=value) for name, value in figures.items()]
        self._add(step=round, summary=Summary(value=values))
        self._file.flush()

    def close(self, is_complete: bool) -> None:
        if is_complete:
            self._add(summary=self._ends)
        self._file.close()

    def _add(self, **what: Any) -> None:
        self._file.write_event(Event(wall_time=self._began + self._seconds, **what))


def _plain(settings: Mapping[str, Any]) -> dict[str, bool | float | str]:
    """{"algorithm.mu": 0.1, "model.hidden": "(64,)", ...}"""
    return {
        key: value if isinstance(value, (bool, int, float)) else str(value) for key, value in flatten(settings).items()
    }


open = TensorBoard
