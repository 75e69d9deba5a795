"""HarmoFL's experiments: Jiang et al., HarmoFL: Harmonizing Local and Global Drifts, AAAI 2022.

python -m experiments.papers.harmofl --what=table1-nuclei --scale=cpu --data=nuclei.npz --workdir=runs/harmofl
"""

from .classification import FIGURE_5, TABLE_2
from .images import FIGURE_1, FIGURE_4
from .segmentation import NUCLEI_TABLE, PROSTATE_TABLE

EXPERIMENTS = {
    "table1-nuclei": NUCLEI_TABLE,
    "table1-prostate": PROSTATE_TABLE,
    "table2": TABLE_2,
    "fig1": FIGURE_1,
    **FIGURE_4,
    **FIGURE_5,
}
