"""Interface of the executors of a traced round."""

from abc import ABC, abstractmethod

from jax.stages import Compiled

from fedjax_het.engine.evaluation.evaluate import Evaluation
from fedjax_het.engine.execution import cost
from fedjax_het.engine.execution.run_spec import OffloadPolicy
from fedjax_het.engine.execution.trace import TracedRound
from fedjax_het.engine.round.phases import RoundMetrics
from fedjax_het.types import State


class Executor(ABC):
    """A round compiled for one layout and one `OffloadPolicy`: an OnDeviceExecutor or a StreamingExecutor."""

    traced: TracedRound
    offload: OffloadPolicy  # where client states and examples are kept
    program: Compiled  # of rounds
    compile_seconds: float

    @abstractmethod
    def start(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def advance(self, state: State, num_rounds: int) -> tuple[State, RoundMetrics]:
        """Run several rounds, which invalidates `state`. The metrics are NumPy arrays [runs, num_rounds, ...]."""

    @abstractmethod
    def evaluate(self, state: State) -> Evaluation:
        """Evaluate on all held-out examples; the results are NumPy arrays."""

    @abstractmethod
    def release(self) -> None:
        """Free the memory of the data on the device."""

    @property
    def round_bytes(self) -> int:
        """Peak bytes on one device in rounds."""
        return self._peak_bytes(cost.temporary_bytes(self.program))

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """Peak bytes on one device, in rounds or in evaluation; compiles the evaluation."""

    def _peak_bytes(self, *temporary: int) -> int:
        """Peak bytes on one device of programs with these temporary bytes."""
        return cost.bytes_before_round(cost.resident_bytes(self.traced, self.offload)) + max(temporary)
