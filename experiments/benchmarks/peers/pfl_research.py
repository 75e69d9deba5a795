"""Apple's pfl-research: its FederatedAveraging on its SimulatedBackend, one process per core, one thread each.

The contender's process is rank 0; it starts the others and sends them an order per round. They connect through
torch.distributed, as in pfl's guide to distributed simulations.
"""

import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from typing import IO

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ..workloads import LayeredWorkload, Weights
from . import Contender, ContenderSettings
from .torch_network import build_network, from_torch, make_tensors

_NEVER = 1 << 30


class _Learner(nn.Module):
    """The network with the two methods that pfl asks for."""

    def __init__(self, work: LayeredWorkload):
        super().__init__()
        self.network = build_network(work)

    def loss(self, inputs: Tensor, labels: Tensor) -> Tensor:
        return cross_entropy(self.network(inputs), labels)

    def metrics(self, inputs: Tensor, labels: Tensor) -> dict:
        return {}


def _simulation(work: LayeredWorkload) -> tuple[Callable[[], None], Callable[[], Weights]]:
    """(a round, the weights); importing pfl joins the other processes."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data import FederatedDataset
    from pfl.data.pytorch import PyTorchTensorDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    torch.set_num_threads(1)
    data, learner = make_tensors(work), _Learner(work)
    learner.to(memory_format=torch.channels_last)  # pyrefly: ignore[no-matching-overload]
    users = [PyTorchTensorDataset((data.inputs[rows], data.labels[rows])) for rows in data.clients]
    dataset = FederatedDataset(users.__getitem__, get_user_sampler("minimize_reuse", list(range(len(users)))))
    backend = SimulatedBackend(training_data=dataset, val_data=dataset)
    model = PyTorchModel(learner, torch.optim.SGD, torch.optim.SGD(learner.parameters(), lr=1.0))
    train = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=work.learning_rate, local_batch_size=work.batch_size
    )
    algorithm, done = FederatedAveraging(), 0

    def round() -> None:
        nonlocal done
        done += 1  # `run` goes on from the iteration where it ended
        params = NNAlgorithmParams(done, _NEVER, work.num_clients, 0)
        algorithm.run(params, backend, model, train, send_metrics_to_platform=False)

    return round, lambda: from_torch(work, learner.parameters())


def prepare(work: LayeredWorkload, settings: ContenderSettings) -> Contender:
    size = max(n for n in range(1, settings.cores + 1) if work.num_clients % n == 0)  # pfl deals them out evenly
    if size > 1:
        addresses = ",".join(f"localhost:{_free_port()}" for _ in range(size))
        os.environ |= {"PFL_WORKER_ADDRESSES": addresses, "PFL_WORKER_RANK": "0"}
    others = [_start(rank, work) for rank in range(1, size)]
    own, weights = _simulation(work)

    def round() -> None:
        for _, stdin in others:
            stdin.write(b"\n")
        own()

    def close() -> None:
        for _, stdin in others:
            stdin.close()

    return Contender(round, weights, close)


def _start(rank: int, work: LayeredWorkload) -> tuple[subprocess.Popen, IO[bytes]]:
    """Start the process of a rank above 0; return it and its input."""
    command, environment = [sys.executable, "-m", __name__], os.environ | {"PFL_WORKER_RANK": str(rank)}
    process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=sys.stderr, bufsize=0)
    assert process.stdin  # it is a pipe
    process.stdin.write(pickle.dumps(work))
    return process, process.stdin


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _serve() -> None:
    """A rank above 0: a round for every line."""
    round, _ = _simulation(pickle.load(sys.stdin.buffer))
    for _ in sys.stdin.buffer:
        round()


if __name__ == "__main__":
    _serve()
