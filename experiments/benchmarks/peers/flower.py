"""Flower's simulation: its FedAvg strategy, clients in Ray actors, one actor per core, the lean loop in each.

Flower's server runs from start to end by itself; here it waits in a queue between its rounds.
"""

import functools
import os
import threading
from queue import SimpleQueue

import torch

from ..workloads import LayeredWorkload, Weights
from . import Contender, ContenderSettings
from .torch_lean import Loop
from .torch_network import from_torch

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation


@functools.cache
def _loop(work: LayeredWorkload) -> Loop:
    """Build the loop once per actor."""
    torch.set_num_threads(1)
    return Loop(work)


def _arrays(loop: Loop, tensors: list[torch.Tensor]) -> ArrayRecord:
    return ArrayRecord(dict(zip(loop.model.state_dict(), tensors, strict=True)))


def _client(work: LayeredWorkload) -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        loop = _loop(work)
        received = message.content["arrays"].to_torch_state_dict()
        torch._foreach_copy_(loop.server, list(received.values()))
        loop.train([int(context.node_config["partition-id"])])
        metrics = MetricRecord({"num-examples": work.num_examples})
        return Message(RecordDict({"arrays": _arrays(loop, loop.total), "metrics": metrics}), reply_to=message)

    return app


def prepare(work: LayeredWorkload, settings: ContenderSettings) -> Contender:
    loop, everyone = Loop(work), work.num_clients
    orders: SimpleQueue[bool] = SimpleQueue()
    answers: SimpleQueue[BaseException | None] = SimpleQueue()
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=everyone, min_available_nodes=everyone)
        arrays = _arrays(loop, loop.server)
        while orders.get():
            arrays = strategy.start(grid, arrays, num_rounds=1).arrays
            torch._foreach_copy_(loop.server, list(arrays.to_torch_state_dict().values()))
            answers.put(None)

    def simulate() -> None:
        resources = {"client_resources": {"num_cpus": 1}, "init_args": {"num_cpus": settings.cores}}
        try:
            run_simulation(server, _client(work), num_supernodes=everyone, backend_config=resources)
        except BaseException as error:
            answers.put(error)

    simulation = threading.Thread(target=simulate, daemon=True)
    simulation.start()

    def round() -> None:
        orders.put(True)
        if (error := answers.get()) is not None:
            raise error

    def weights() -> Weights:
        return from_torch(work, loop.server)

    def close() -> None:
        orders.put(False)
        simulation.join(timeout=20)  # Ray ends its own processes

    return Contender(round, weights, close)
