"""Personal layers in the networks of the papers' runs."""

import jax
import jax.numpy as jnp
import pytest

from experiments.configuration import build, calls
from experiments.configuration.settings import TABLES
from experiments.papers import fedld, fedmgc, fedrd, harmofl
from fedjax_het import sharing, tree

IMAGES = jax.ShapeDtypeStruct((1, 32, 32, 3), jnp.float32)


@pytest.mark.parametrize("paper", [fedld, fedmgc, fedrd, harmofl])
def test_networks_have_the_layers_that_their_algorithm_keeps_personal(paper):
    seen = set()
    for experiment in paper.EXPERIMENTS.values():
        for scale, chosen in experiment.scales.items():
            for cell in experiment.make_runs(scale, {}, dict.fromkeys(chosen.data, "somewhere")).values():
                settings = cell.settings()
                algorithm, table = build.build_algorithm(settings), {**settings["model"], "pretrained": None}
                table = {key: value for key, value in table.items() if key in settings["model"]}
                which = settings["algorithm"]["name"], str(table)
                if not hasattr(algorithm.sharing, "classes") or which in seen:
                    continue
                seen.add(which)
                model = calls.build_from_table(table, TABLES["model"].registry, "config.model", num_classes=3)
                model = algorithm.adapt(model)
                paths = tree.paths(jax.eval_shape(model.init, jax.random.key(0), IMAGES))
                assert sharing.personal_paths(algorithm.sharing, paths, model.layers(IMAGES)), (cell.name, scale)
    assert bool(seen) == (paper is not fedmgc)
