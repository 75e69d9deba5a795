"""FedMGC's experiments: Wang et al., Joint Focal Loss and Dominant Gradient Correction for Gradient Conflict.

python -m experiments.papers.fedmgc --what=fig12 --scale=cpu --data=cifar10=cifar10.npz --data=fmnist=fmnist.npz
"""

from .accuracy import ACCURACY
from .clients import CLIENTS

EXPERIMENTS = {**CLIENTS, **ACCURACY}
