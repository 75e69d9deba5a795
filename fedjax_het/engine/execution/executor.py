"""Interface of the executors of a traced round."""

from typing import Protocol

from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.round.program import RoundMetrics
from fedjax_het.types import State


class Executor(Protocol):
    """A round compiled for one layout and one `OffloadPolicy`: an OnDeviceExecutor or a StreamingExecutor."""

    traced: TracedRound
    compile_seconds: float

    @property
    def offload(self) -> OffloadPolicy:
        """Where client states and examples are kept."""
        ...

    @property
    def peak_bytes(self) -> int:
        """Peak bytes on one device, in rounds or in evaluation; compiles the evaluation."""
        ...

    @property
    def round_bytes(self) -> int:
        """Peak bytes on one device in rounds."""
        ...

    def start(self) -> State:
        """The state before the first round."""
        ...

    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """Run some rounds; `state` is consumed. The metrics are NumPy arrays [runs, num_rounds, ...]."""
        ...

    def evaluate(self, state: State) -> Evaluation:
        """Evaluate on all held-out examples; the results are NumPy arrays."""
        ...

    def release(self) -> None:
        """Free the memory of the data on the device."""
        ...
