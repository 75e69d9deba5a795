"""The trials of a study in PyTorch: python -m experiments.benchmarks.peers.torch_study STUDY.json STUDY.npz

One process per core, each with one thread, trains one trial after another by FedAvg with a lean loop, whatever the
method: other methods take longer. Prints a line of JSON per trial. Imports nothing of fedjax_het.

STUDY.json: {"cores", "rounds", "batch_size", "channels", "kernel", "hidden", "learning_rates": one per trial}
STUDY.npz: inputs [n, height, width] uint8, labels [n], train and valid [clients, capacity] and their counts, test
[examples], cohorts [rounds, cohort].
"""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, multiprocessing, nn
from torch.nn.functional import cross_entropy

Study = Mapping[str, Any]


def build_network(study: Study, shape: Sequence[int], num_classes: int) -> nn.Module:
    """Convolutions with max pooling, dense layers, the classifier."""
    layers: list[nn.Module] = []
    channels, height, width = 1, *shape
    for features in study["channels"]:
        layers += [nn.Conv2d(channels, features, study["kernel"], padding="same"), nn.MaxPool2d(2), nn.ReLU()]
        channels, height, width = features, height // 2, width // 2
    size, layers = channels * height * width, [*layers, nn.Flatten()]
    for units in study["hidden"]:
        layers += [nn.Linear(size, units), nn.ReLU()]
        size = units
    return nn.Sequential(*layers, nn.Linear(size, num_classes))


def train(study: Study, tensors: Mapping[str, Tensor], learning_rate: float) -> dict[str, float]:
    """Train one trial and evaluate it: accuracies on the test set and on the validation examples."""
    torch.manual_seed(0)
    inputs, labels, counts = tensors["inputs"], tensors["labels"], tensors["train_count"].tolist()
    model = build_network(study, inputs.shape[2:], int(labels.max()) + 1)
    parameters = list(model.parameters())
    server = [parameter.detach().clone() for parameter in parameters]
    for cohort in tensors["cohorts"].tolist():
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            rows = tensors["train"][client, torch.randperm(counts[client])]
            for batch in rows.split(study["batch_size"]):
                loss = cross_entropy(model(inputs[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-learning_rate)
            with torch.no_grad():
                torch._foreach_add_(total, parameters, alpha=counts[client])
        torch._foreach_div_(total, sum(counts[client] for client in cohort))
        server = total
    with torch.no_grad():
        torch._foreach_copy_(parameters, server)
        is_valid = torch.arange(tensors["valid"].shape[1]) < tensors["valid_count"][:, None]
        parts = {"test": tensors["test"], "valid": tensors["valid"][is_valid]}
        return {
            name: float((model(inputs[rows]).argmax(1) == labels[rows]).float().mean()) for name, rows in parts.items()
        }


def _work(study: Study, tensors: Mapping[str, Tensor], trials: multiprocessing.SimpleQueue) -> None:
    torch.set_num_threads(1)
    while (learning_rate := trials.get()) is not None:
        print(json.dumps({"learning_rate": learning_rate} | train(study, tensors, learning_rate)), flush=True)


def main(study_file: str, arrays_file: str) -> None:
    study, arrays = json.loads(Path(study_file).read_text()), np.load(arrays_file)
    tensors = {name: torch.from_numpy(arrays[name]).long() for name in arrays.files if name != "inputs"}
    inputs = torch.from_numpy(arrays["inputs"]).float().div_(255)[:, None]
    tensors["inputs"] = (inputs - inputs.mean()) / inputs.std()
    for tensor in tensors.values():
        tensor.share_memory_()
    context = multiprocessing.get_context("spawn")
    trials = context.SimpleQueue()
    workers = [context.Process(target=_work, args=(study, tensors, trials)) for _ in range(study["cores"])]
    for worker in workers:
        worker.start()
    for learning_rate in [*study["learning_rates"], *[None] * len(workers)]:
        trials.put(learning_rate)
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
