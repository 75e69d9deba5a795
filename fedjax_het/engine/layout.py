"""The client axis on hardware. With round.py, the only place that knows there is one."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het.errors import InputError
from fedjax_het.types import PyTree

AXIS = "clients"


@dataclass(frozen=True)
class Layout:
    """How many clients run side by side, and on which devices.

    chunk: so many at a time on each device, one chunk after another; None is all at once.   mesh: one axis, `clients`.
    """

    chunk: int | None = None
    mesh: Mesh | None = None

    @property
    def num_devices(self) -> int:
        return self.mesh.size if self.mesh else 1

    @property
    def sharding(self) -> NamedSharding | None:
        """Where state and data live: on every device of the mesh."""
        return NamedSharding(self.mesh, P()) if self.mesh else None

    def padded(self, num_clients: int) -> int:
        """The smallest count that fills every device and chunk; the round pads with clients that do nothing."""
        a_device = -(-num_clients // self.num_devices)
        chunk = self.chunk and min(self.chunk, a_device)
        return self.num_devices * (-(-a_device // chunk) * chunk if chunk else a_device)

    def map(self, function: Callable[[PyTree, PyTree], PyTree], common: PyTree, clients: PyTree) -> PyTree:
        """function(common, one client) over the leading axis of `clients`, whose length is `padded(...)` of itself."""
        if not self.mesh:
            return self._on_device(function, common, clients)
        body = jax.shard_map(
            lambda common, clients: self._on_device(function, common, clients),
            mesh=self.mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=P(AXIS),
            check_vma=False,  # a client's loop has its own length, which the checker takes for a mismatch
        )
        return body(common, clients)

    def _on_device(self, function: Callable, common: PyTree, clients: PyTree) -> PyTree:
        count = jax.tree.leaves(clients)[0].shape[0]
        chunk = min(self.chunk or count, count)
        if chunk == 1:
            return jax.lax.map(lambda client: function(common, client), clients)
        side_by_side = jax.vmap(function, in_axes=(None, 0))
        if chunk == count:
            return side_by_side(common, clients)
        blocks = jax.tree.map(lambda x: x.reshape(count // chunk, chunk, *x.shape[1:]), clients)
        out = jax.lax.map(lambda block: side_by_side(common, block), blocks)
        return jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), out)

    def __str__(self) -> str:
        if self.mesh:
            return f"sharded({self.num_devices}{f', {self.chunk}' if self.chunk else ''})"
        return f"chunked({self.chunk})" if self.chunk else "vmapped"


vmapped = Layout()
"""All clients of the cohort at once."""


def chunked(size: int) -> Layout:
    """`size` clients at a time: less memory; with 1, each client takes just the steps it needs."""
    if size < 1:
        raise InputError(f"layout: a chunk holds at least 1 client, not {size}.")
    return Layout(chunk=size)


def sharded(devices: int | Mesh, chunk: int | None = None) -> Layout:
    """The cohort spread over devices (the first so many, or a mesh with one axis), each in chunks if asked.

    Raises InputError if there are not so many devices. CPU cores become devices with `jax_num_cpu_devices`, set before
    anything is computed.
    """
    if isinstance(devices, Mesh):
        mesh = Mesh(devices.devices.reshape(-1), (AXIS,))
    else:
        found = jax.devices()
        if not 1 <= devices <= len(found):
            raise InputError(
                f"layout: {devices} devices were asked for, {len(found)} found ({found[0].platform}). On a CPU call "
                "jax.config.update('jax_num_cpu_devices', ...) first."
            )
        mesh = Mesh(np.array(found[:devices]), (AXIS,))
    if chunk is not None and chunk < 1:
        raise InputError(f"layout: a chunk holds at least 1 client, not {chunk}.")
    return Layout(chunk=chunk, mesh=mesh)
