"""Trackers, in which a run can be followed while it trains: config.live = "tensorboard,wandb".

A tracker shows what has been written to metrics.jsonl and diagnostics.jsonl, and does not change a run by a bit. It is
a module of this package with `open(run) -> Writer`, which writes below the run directory. To add one: write the module,
add its row to WRITERS, and an extra of the same name to pyproject.toml.
"""

import importlib
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from operator import methodcaller
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol

from fedjax_het.cli.runs.records import MetricLines, flatten
from fedjax_het.cli.runs.run_files import DIAGNOSTICS, METRICS
from fedjax_het.cli.runs.setting_text import parse_names
from fedjax_het.errors import InputError


class Tracker(NamedTuple):
    module: str  # of this package
    package: str  # which the module needs
    folder: str  # below the run directory


WRITERS: Mapping[str, Tracker] = MappingProxyType(
    {
        "tensorboard": Tracker("tensorboard", "tensorboardX", "tensorboard"),
        "wandb": Tracker("weights_and_biases", "wandb", "wandb"),
    }
)


class TrackedRun(NamedTuple):
    """The description of a run that a writer gets."""

    directory: Path
    settings: Mapping[str, Any]
    seeds: list[int]
    start_time: float  # seconds since 1970, as if it had never been interrupted

    def hyperparameters(self, seed: int) -> dict[str, Any]:
        """Return the config of one seed."""
        return {**self.settings, "seed": seed}


class Writer(Protocol):
    def write(self, round: int, seed: int, figures: Mapping[str, float]) -> None:
        """Show figures. The rounds of a seed come in order, each once, and from the first on when a run resumes."""

    def close(self, is_complete: bool) -> None: ...


def names(text: str) -> list[str]:
    """Parse the names in config.live.

    Raises:
        InputError: A name is unknown.
    """
    return parse_names("live", text, WRITERS)


def folders(text: str, directory: Path) -> list[str]:
    """List the folders that the trackers of config.live have made in a run directory."""
    return [folder for name in names(text) if (directory / (folder := WRITERS[name].folder)).exists()]


def check(names: Iterable[str]) -> None:
    """Raise InputError if the package of a tracker is not installed."""
    for name in names:
        if importlib.util.find_spec(package := WRITERS[name].package) is None:
            raise InputError(
                f"config.live: {name} needs {package}, which is not installed. Install it: pip install "
                f'"fedjax-het[{name}]", or leave {name} out.'
            )


class Trackers:
    """The trackers of one run.

    A tracker that fails during the run causes one warning and is not used again: the run and its files do not depend on
    it, and it shows everything when the run is resumed.
    """

    def __init__(self, names: Iterable[str], run: TrackedRun):
        """Start the trackers.

        Raises:
            InputError: A tracker does not start, for example W&B without a key. Those started before are closed.
        """
        logs = {"": METRICS, "diagnostics/": DIAGNOSTICS}
        self._logs = {prefix: MetricLines(run.directory / name) for prefix, name in logs.items()}
        self._writers: dict[str, Writer] = {}
        for name in names:
            try:
                self._writers[name] = importlib.import_module(f"{__name__}.{WRITERS[name].module}").open(run)
            except Exception as error:
                self.close(is_complete=False)
                reason = str(error).rstrip(".")
                raise InputError(
                    f"config.live: {name} did not start ({reason}). Fix it, or leave {name} out."
                ) from error

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_complete=kind is None)

    def catch_up(self, warn: Callable[[str], None]) -> None:
        """Show the lines written since the last call."""
        if self._writers:
            for (round, seed), figures in self._read_points().items():
                self._call_each(methodcaller("write", round, seed, figures), warn)

    def close(self, is_complete: bool) -> None:
        self._call_each(methodcaller("close", is_complete), lambda text: print(f"warning: {text}"))

    def _read_points(self) -> dict[tuple[int, int], dict[str, float]]:
        """Read {(round, seed): the numbers of its new lines}, ordered by round, without those that are not finite."""
        points: dict[tuple[int, int], dict[str, float]] = {}
        for prefix, log in self._logs.items():
            for line in log.read_new():
                point = points.setdefault((line.pop("round"), line.pop("seed")), {})
                point |= {
                    key: value for key, value in flatten(line, "/", prefix).items() if isinstance(value, (int, float))
                }
        return dict(sorted(points.items()))

    def _call_each(self, action: Callable[[Writer], None], warn: Callable[[str], None]) -> None:
        for name, writer in list(self._writers.items()):
            try:
                action(writer)
            except Exception as error:
                del self._writers[name]
                warn(f"{name} failed and is not used again ({type(error).__name__}: {error}); the run continues")
