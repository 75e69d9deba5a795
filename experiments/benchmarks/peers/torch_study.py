"""The trials of a study in PyTorch: python -m experiments.benchmarks.peers.torch_study STUDY.json STUDY.npz

One process per core, each with one thread, trains one trial after another by FedAvg with a lean loop, whatever the
method: other methods take longer. Prints a line of JSON per trial. Imports nothing of fedjax_het.

STUDY.json: {"cores", "batch_size", "channels", "kernel", "hidden", "learning_rates": one per trial}
STUDY.npz: inputs [n, height, width] uint8, labels [n], train and valid [clients, capacity] and their counts, test
[examples], cohorts [rounds, cohort].
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, multiprocessing

from ..workloads.layered import Conv, LayeredWorkload
from ..workloads.workload import Shape
from .torch_network import build_network, mean_loss, trained_parameters

Study = Mapping[str, Any]


def describe_network(study: Study, shape: Shape, num_classes: int, learning_rate: float) -> LayeredWorkload:
    """The network and the local training of a trial; its numbers of clients and examples are not used."""
    return LayeredWorkload(
        base="study",
        num_clients=0,
        num_examples=0,
        batch_size=study["batch_size"],
        learning_rate=learning_rate,
        shape=shape,
        convolutions=tuple(Conv(study["kernel"], features, "SAME") for features in study["channels"]),
        units=(*study["hidden"], num_classes),
    )


def train(study: Study, tensors: Mapping[str, Tensor], learning_rate: float) -> dict[str, float]:
    """Train one trial and evaluate it: accuracies on the test set and on the validation examples."""
    torch.manual_seed(0)
    inputs, labels, counts = tensors["inputs"], tensors["labels"], tensors["train_count"].tolist()
    work = describe_network(study, (inputs.shape[2], inputs.shape[3], 1), int(labels.max()) + 1, learning_rate)
    model = build_network(work)
    parameters = trained_parameters(model)
    server = [parameter.detach().clone() for parameter in parameters]
    for cohort in tensors["cohorts"].tolist():
        total = [torch.zeros_like(parameter) for parameter in parameters]
        for client in cohort:
            with torch.no_grad():
                torch._foreach_copy_(parameters, server)
            rows = tensors["train"][client, torch.randperm(counts[client])]
            for batch in rows.split(work.batch_size):
                loss = mean_loss(model(inputs[batch]), labels[batch])
                gradients = torch.autograd.grad(loss, parameters)
                with torch.no_grad():
                    torch._foreach_add_(parameters, gradients, alpha=-work.learning_rate)
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
