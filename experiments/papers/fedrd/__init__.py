"""FedRD's experiments: Reducing Divergences for Generalized Federated Learning.

    python -m experiments.papers.fedrd --what=table2 --scale=cpu --data=PACS --workdir=runs/fedrd

Every domain is left out in turn. Tables are counted as in the published text: 1 Mini-DomainNet and OfficeHome,
2 PACS, 3 VLCS, 4 local epochs, 5 ablation. What ends in -resnet50 is the same with ResNet-50.
"""

from .other_datasets import ELSEWHERE
from .pacs import ON_PACS

EXPERIMENTS = {**ELSEWHERE, **ON_PACS}
