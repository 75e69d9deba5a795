"""Weights and adapters by their name on a hub."""

import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedjax_het._internal.keys import make_key
from fedjax_het.errors import InputError
from fedjax_het.models import _hub, bert, lora, pretrained_lora, read_state_dict, save_adapters, save_published

KEY, TOKENS = make_key(0), jnp.zeros((1, 3), jnp.int32)
SIZES = {"features": 4, "layers": 1, "heads": 1, "mlp_size": 4, "vocabulary": 5, "max_length": 4}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """(folder of repositories, the downloads) of a hub in place of the real one."""
    downloads = []

    def download(repository, revision=None, allow_patterns=()):
        downloads.append((repository, revision))
        if not (tmp_path / repository).is_dir():
            raise OSError("we cannot connect to the hub.\nMore on the next line")
        assert "model.safetensors" in allow_patterns and not any("bin" in pattern for pattern in allow_patterns)
        return str(tmp_path / repository)

    monkeypatch.setitem(sys.modules, "huggingface_hub", SimpleNamespace(snapshot_download=download))
    _hub._download.cache_clear()
    yield tmp_path, downloads
    _hub._download.cache_clear()


@pytest.mark.slow
def test_sizes_weights_and_adapters_are_downloaded_once_by_name(hub):
    folder, downloads = hub
    model = lora(rank=1)(bert(2, **SIZES))
    variables = model.init(make_key(1), TOKENS)
    save_published(folder / "owner" / "base", bert(2, **SIZES).init(KEY, TOKENS), model)
    save_adapters(folder / "owner" / "adapters", variables, model, [], base="hf:owner/base@v1")
    read = pretrained_lora("hf:owner/adapters")(bert(2, pretrained="hf:owner/base@v1")).init(KEY, TOKENS)
    assert sorted(downloads, key=str) == [("owner/adapters", None), ("owner/base", "v1")]
    ours, theirs = read["params"]["block_0"]["dense_0"], variables["params"]["block_0"]["dense_0"]
    np.testing.assert_array_equal(ours["lora_a"], theirs["lora_a"])
    config = (folder / "owner" / "adapters" / "adapter_config.json").read_text()
    assert '"base_model_name_or_path": "owner/base"' in config and '"revision": "v1"' in config


@pytest.mark.parametrize("is_installed", [True, False])
def test_without_a_hub_the_message_says_what_to_download_and_where_to_put_it(hub, monkeypatch, is_installed):
    if not is_installed:
        monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    reason = (
        r"cannot be downloaded \(we cannot connect to the hub\)" if is_installed else r"needs huggingface_hub \(pip"
    )
    with pytest.raises(InputError, match=reason) as refused:
        read_state_dict("hf:owner/missing@main")
    message = str(refused.value)
    assert "\n" not in message and "'hf:owner/missing@main'" in message
    assert "its .json and .safetensors files from https://huggingface.co/owner/missing into a directory" in message


@pytest.mark.extended
def test_the_real_package_reads_the_cache_without_a_network(monkeypatch, tmp_path):
    """The layout of huggingface_hub: refs name commits, and files of a snapshot are links to blobs."""
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    _hub._download.cache_clear()
    repository, commit = tmp_path / "models--owner--base", "0123456789" * 4
    model = bert(2, **SIZES)
    saved = model.init(KEY, TOKENS)
    save_published(repository / "blobs", saved, model)
    (repository / "snapshots" / commit).mkdir(parents=True)
    for blob in (repository / "blobs").iterdir():
        (repository / "snapshots" / commit / blob.name).symlink_to(f"../../blobs/{blob.name}")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    for name in ("hf:owner/base", f"hf:owner/base@{commit}"):
        read = bert(2, pretrained=name).init(make_key(1), TOKENS)
        jax.tree.map(np.testing.assert_array_equal, read["params"]["block_0"], saved["params"]["block_0"])
    with pytest.raises(InputError, match=r"'hf:owner/base@v2' cannot be downloaded .* into a directory"):
        read_state_dict("hf:owner/base@v2")
    (repository / "snapshots" / commit / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        read_state_dict("hf:owner/base")
