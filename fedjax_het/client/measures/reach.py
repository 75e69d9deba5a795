"""How far a round's gradients could carry a client (FedCM)."""

from fedjax_het.algorithm import Measure, Problem
from fedjax_het.client.schedules import Schedule, rate
from fedjax_het.types import Array, ClientView


def reach(learning_rate: float, schedule: Schedule | None = None) -> Measure:
    """K_i lr: an update of plain SGD divided by it is minus the mean direction along the path.

    Shape: [].   Reads: num_steps.   schedule: what lr is multiplied by in a round, as in `sgd`.
    Xu et al., FedCM, 2021. arXiv:2106.10874
    """

    def measure(problem: Problem, view: ClientView) -> Array:
        return view.num_steps * rate(learning_rate, schedule, view)

    return measure
