"""Workloads of the benchmark as data: shapes, layers, examples, initial weights, the partition, and FLOP.

They need NumPy alone, so that contenders in other environments read the same numbers.
"""

from collections.abc import Mapping
from types import MappingProxyType

from .adapted import AdaptedWorkload, TextWorkload, VisionWorkload
from .layered import Conv, LayeredWorkload
from .recurrent import RecurrentWorkload
from .residual import ResidualWorkload
from .workload import NUM_CLASSES, Weights, Workload

__all__ = [
    "ADAPTED",
    "LAYERED",
    "NUM_CLASSES",
    "W1",
    "W2",
    "W3",
    "W4",
    "W4_SMALL",
    "W5",
    "W6",
    "W7",
    "WORKLOADS",
    "AdaptedWorkload",
    "LayeredWorkload",
    "RecurrentWorkload",
    "ResidualWorkload",
    "TextWorkload",
    "VisionWorkload",
    "Weights",
    "Workload",
]

W1 = LayeredWorkload(
    base="w1",
    num_clients=10,
    num_examples=600,
    shape=(28, 28, 1),
    convolutions=(Conv(5, 32, "SAME"), Conv(5, 64, "SAME")),
    units=(512, NUM_CLASSES),
    batch_size=50,
    learning_rate=0.01,
)
W2 = LayeredWorkload(
    base="w2",
    num_clients=10,
    num_examples=500,
    shape=(32, 32, 3),
    convolutions=(Conv(5, 6, "VALID"), Conv(5, 16, "VALID")),
    units=(120, 84, NUM_CLASSES),
    batch_size=50,
    learning_rate=0.05,
)
W3 = LayeredWorkload(
    base="w3",
    num_clients=1000,
    num_examples=100,
    shape=(28, 28, 1),
    convolutions=(),
    units=(NUM_CLASSES,),
    batch_size=20,
    learning_rate=0.05,
)
W4 = ResidualWorkload(
    base="w4",
    num_clients=4,
    num_examples=100,
    shape=(64, 64, 3),
    stem="imagenet",
    batch_size=50,
    learning_rate=0.01,
)
W4_SMALL = ResidualWorkload(
    base="w4_small",
    num_clients=4,
    num_examples=50,
    shape=(32, 32, 3),
    stem="small",
    batch_size=25,
    learning_rate=0.01,
)
W5 = RecurrentWorkload(
    base="w5",
    num_clients=10,
    num_examples=50,
    num_classes=80,
    length=80,
    embedding=8,
    hidden=(256, 256),
    batch_size=10,
    learning_rate=0.5,
)
W6 = VisionWorkload(
    base="w6",
    num_clients=10,
    num_examples=100,
    shape=(64, 64, 3),
    patch=16,
    features=192,
    layers=12,
    heads=3,
    kv_heads=3,
    mlp_size=768,
    batch_size=20,
    learning_rate=0.05,
)
W7 = TextWorkload(
    base="w7",
    num_clients=10,
    num_examples=8,
    num_classes=4096,
    length=128,
    features=256,
    layers=10,
    heads=8,
    kv_heads=4,
    mlp_size=768,
    batch_size=4,
    learning_rate=0.5,
)
LAYERED: Mapping[str, LayeredWorkload] = MappingProxyType({work.base: work for work in (W1, W2, W3)})
ADAPTED: Mapping[str, AdaptedWorkload] = MappingProxyType({work.base: work for work in (W6, W7)})
WORKLOADS: Mapping[str, Workload] = MappingProxyType(
    {**LAYERED, **{work.base: work for work in (W4, W4_SMALL, W5)}, **ADAPTED}
)
