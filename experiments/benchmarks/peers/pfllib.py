"""PFLlib's FedAvg: its server and its clients, one after another, each with PyTorch's threads on all cores.

Examples stay in memory, where PFLlib reads a file per client and round, and keep their order. The round is that of
`FedAvg.train` without its evaluation. Running statistics of norms, which PFLlib does not average, are not compared.
"""

from argparse import Namespace
from typing import Any

import torch
from torch.utils.data import DataLoader

from ..workloads import Workload
from . import Contender, ContenderSettings, UnusableError
from .torch_network import build_network, from_torch, make_tensors, read_facts, select_device, trained_parameters

try:
    from flcore.clients import clientbase
    from flcore.clients.clientavg import clientAVG
    from flcore.servers import serveravg, serverbase
except ImportError as error:
    raise UnusableError(f"{error}. PFLlib's folder 'system' must be on the PYTHONPATH") from None


class _Settings(Namespace):
    def __getattr__(self, name: str) -> int:
        return 0  # the other options are off


class _Client(clientAVG):
    def load_train_data(self) -> DataLoader:
        examples: Any = clientbase.read_client_data(self.dataset, self.id)  # a list of pairs, as PFLlib's
        return DataLoader(examples, self.batch_size)


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    device, data = select_device(settings), make_tensors(work)
    clients = [list(zip(data.inputs[rows], data.labels[rows], strict=True)) for rows in data.clients]
    clientbase.read_client_data = serverbase.read_client_data = lambda dataset, number, *_, **__: clients[number]
    sizes = {"num_clients": work.num_clients, "batch_size": work.batch_size, "local_learning_rate": work.learning_rate}
    fixed = {"join_ratio": 1.0, "local_epochs": 1, "learning_rate_decay_gamma": 1.0, "time_threthold": float("inf")}
    model = build_network(work).to(device, memory_format=torch.channels_last)  # pyrefly: ignore[no-matching-overload]
    serveravg.clientAVG = _Client
    server = serveravg.FedAvg(_Settings(**sizes, **fixed, model=model, device=device), 0)

    def round() -> None:
        server.selected_clients = server.select_clients()
        server.send_models()
        for client in server.selected_clients:
            client.train()
        server.receive_models()
        server.aggregate_parameters()

    return Contender(
        round, lambda: from_torch(work, trained_parameters(server.global_model)), facts=lambda: read_facts(device)
    )
