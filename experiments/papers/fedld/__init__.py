"""FedLD's experiments: Zeng et al., Tackling Data Heterogeneity in Federated Learning via Loss Decomposition.

python -m experiments.papers.fedld --what=table2 --scale=cpu --data=cxr.npz --workdir=runs/fedld
"""

from .ablation import FIGURE_2, TABLE_2
from .methods import COVID, TABLE_1, TABLE_3

EXPERIMENTS = {"table1": TABLE_1, "table1-covid": COVID, "table2": TABLE_2, "table3": TABLE_3, "fig2": FIGURE_2}
