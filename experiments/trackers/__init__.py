"""Where a run can be followed while it goes on: config.live = "tensorboard,wandb".

Writers show what metrics.jsonl and diagnostics.jsonl hold, after it was written there, and decide nothing: a run with
them is the same to the bit. A writer is a module here with `open(run) -> Writer`; it writes below the run directory.
To add one: write the file, add the row, and an extra of the same name to pyproject.toml.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from fedjax_het.errors import InputError

from ..runs import diagnostics_log
from ..runs.records import MetricLines, flatten
from ..runs.setting_text import parse_names


class Tracker(NamedTuple):
    module: str  # below experiments.trackers
    package: str  # without it the writer cannot run; the extra is called as the writer
    folder: str  # below the run directory


WRITERS: Mapping[str, Tracker] = MappingProxyType(
    {
        "tensorboard": Tracker("tensorboard", "tensorboardX", "tensorboard"),
        "wandb": Tracker("weights_and_biases", "wandb", "wandb"),
    }
)


class TrackedRun(NamedTuple):
    """What writers are told of a run."""

    directory: Path
    settings: Mapping[str, Any]
    seeds: list[int]
    began: float  # seconds since 1970, as if it had never been interrupted

    def hyperparameters(self, seed: int) -> dict[str, Any]:
        """The config of one of the seeds that run side by side."""
        return {**self.settings, "seed": seed}


class Writer(Protocol):
    def write(self, round: int, seed: int, figures: Mapping[str, float]) -> None:
        """Rounds of a seed come in their order, each once, and from the first on when a run resumes."""

    def close(self, is_complete: bool) -> None: ...


def names(text: str) -> list[str]:
    """What config.live names. Raises InputError for an unknown name."""
    return parse_names("live", text, WRITERS)


def folders(text: str, directory: Path) -> list[str]:
    """Those that the writers made in a run directory: none where it was complete before they were asked for."""
    return [folder for name in names(text) if (directory / (folder := WRITERS[name].folder)).exists()]


def check(names: Iterable[str]) -> None:
    """Raises InputError where what a writer needs is not installed."""
    for name in names:
        if importlib.util.find_spec(package := WRITERS[name].package) is None:
            raise InputError(
                f"config.live: {name} needs {package}, which is not installed. Install it: pip install "
                f'"fedjax-het[{name}]", or leave {name} out.'
            )


class Trackers:
    """The writers of one run.

    One that fails in the middle of the run is warned of once and left alone from there on: the run and its files do not
    depend on it, and where the run is resumed it shows everything again.
    """

    def __init__(self, names: Iterable[str], run: TrackedRun):
        """Raises InputError for a writer that does not start, W&B without a key say. Earlier ones are closed."""
        logs = {"": "metrics.jsonl", "diagnostics/": diagnostics_log.NAME}
        self._logs = {prefix: MetricLines(run.directory / name) for prefix, name in logs.items()}
        self._writers: dict[str, Writer] = {}
        for name in names:
            try:
                self._writers[name] = importlib.import_module(f"{__name__}.{WRITERS[name].module}").open(run)
            except Exception as error:
                self.close(is_complete=False)
                why = str(error).rstrip(".")
                raise InputError(f"config.live: {name} did not start ({why}). Mend it, or leave {name} out.") from error

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_complete=kind is None)

    def catch_up(self, warn: Callable[[str], None]) -> None:
        """Show the lines that were written since the last time."""
        if self._writers:
            for (round, seed), figures in self._points().items():
                self._tell(methodcaller("write", round, seed, figures), warn)

    def close(self, is_complete: bool) -> None:
        self._tell(methodcaller("close", is_complete), lambda text: print(f"warning: {text}"))

    def _points(self) -> dict[tuple[int, int], dict[str, float]]:
        """{(round, seed): the single numbers of its new lines}, rounds in their order. What is not finite is null in a
        line, and a gap here."""
        found: dict[tuple[int, int], dict[str, float]] = {}
        for prefix, log in self._logs.items():
            for line in log.read_on():
                point = found.setdefault((line.pop("round"), line.pop("seed")), {})
                point |= {
                    key: value for key, value in flatten(line, "/", prefix).items() if isinstance(value, (int, float))
                }
        return dict(sorted(found.items()))

    def _tell(self, action: Callable[[Writer], None], warn: Callable[[str], None]) -> None:
        for name, writer in list(self._writers.items()):
            try:
                action(writer)
            except Exception as error:
                del self._writers[name]
                warn(f"{name} failed and shows no more of this run ({type(error).__name__}: {error}); the run goes on")
