"""PyTorch as a researcher writes it: a DataLoader and a copy of the model per client, the mean of the state dicts."""

import copy

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

from ..workloads import Workload
from . import Contender, ContenderSettings
from .torch_network import build_network, from_torch, make_tensors, mean_loss, trained_parameters


def prepare(work: Workload, settings: ContenderSettings) -> Contender:
    torch.set_num_threads(settings.cores)
    data, model = make_tensors(work), build_network(work)
    everything = TensorDataset(data.inputs.contiguous(), data.labels)
    loaders = [
        DataLoader(Subset(everything, positions.tolist()), batch_size=work.batch_size) for positions in data.clients
    ]

    def train_client(loader: DataLoader) -> dict[str, torch.Tensor]:
        local = copy.deepcopy(model)
        optimizer = torch.optim.SGD(trained_parameters(local), lr=work.learning_rate)
        for inputs, labels in loader:
            optimizer.zero_grad()
            mean_loss(local(inputs), labels).backward()
            optimizer.step()
        return local.state_dict()

    def round() -> None:
        uploads = [train_client(loader) for loader in loaders]
        mean = {name: torch.stack([upload[name] for upload in uploads]).float().mean(dim=0) for name in uploads[0]}
        model.load_state_dict(mean)

    return Contender(round, lambda: from_torch(work, trained_parameters(model)))
