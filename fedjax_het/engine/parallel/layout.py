"""The client axis on hardware. With round.py and update_stack.py, the only place that knows there is one."""

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedjax_het import tree
from fedjax_het._internal.machine_memory import host_memory
from fedjax_het.errors import InputError
from fedjax_het.types import PyTree
from fedjax_het.validation import Count, validate_arguments

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
        """Where data and the server's state live: on every device of the mesh."""
        return NamedSharding(self.mesh, P()) if self.mesh else None

    @property
    def device_memory(self) -> float:
        """Bytes that one device can hold at the most; of a CPU its part of memory and swap. Infinity if not known."""
        devices = self.mesh.local_devices if self.mesh else jax.local_devices()[:1]
        if limit := (devices[0].memory_stats() or {}).get("bytes_limit"):
            return limit
        return host_memory() // len(devices) if devices[0].platform == "cpu" else float("inf")

    def replicate_traced(self, values: PyTree) -> PyTree:
        """Inside a compiled function: the same values, whole on every device of the mesh."""
        return jax.lax.with_sharding_constraint(values, self.sharding) if self.mesh else values

    def client_sharding(self, axis: int = 0) -> NamedSharding | None:
        """Where client states live between rounds: a part of this axis, that of the clients, on each device."""
        return NamedSharding(self.mesh, P(*[None] * axis, AXIS)) if self.mesh else None

    def count_client_rows(self, num_clients: int) -> int:
        """Rows of the client states: at least one for each client, and equally many on each device."""
        return self.round_up(num_clients) if self.mesh else num_clients

    def jit(self, function: Callable, results: PyTree, **options) -> Callable:
        """jax.jit with results that live so: a prefix tree of shardings, not looked at without a mesh."""
        return jax.jit(function, **({"out_shardings": results} if self.mesh else {}), **options)

    def replicate(self, values: PyTree) -> PyTree:
        """Values of the host, the same in every process, on every device of the mesh."""
        if not self.mesh or self.sharding.is_fully_addressable:
            return jax.device_put(values, self.sharding)
        # device_put would send everything to every process, to compare.
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(np.shape(x), self.sharding, lambda index: x[index]), values
        )

    def round_up(self, num_clients: int) -> int:
        """The smallest count that fills every device and chunk; the round pads with clients that do nothing."""
        a_device = -(-num_clients // self.num_devices)
        chunk = self.chunk and min(self.chunk, a_device)
        return self.num_devices * (-(-a_device // chunk) * chunk if chunk else a_device)

    def map(self, function: Callable[[PyTree, PyTree], PyTree], common: PyTree, clients: PyTree) -> PyTree:
        """function(common, one client) over the leading axis of `clients`, whose length is `padded(...)` of itself."""
        return self.map_and_sum(lambda common, client: (function(common, client), {}), common, clients)[0]

    def map_and_sum(
        self, function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], common: PyTree, clients: PyTree
    ) -> tuple[PyTree, PyTree]:
        """The same for a function that returns two things: the first stacked, the second added up.

        Sums run from chunk to chunk, so that what is summed takes the memory of one chunk. A stack that nobody reads
        is not kept either: the compiler drops it.
        """
        if not self.mesh:
            return self._on_device(function, common, clients)

        def on_each(common: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
            stacked, summed = self._on_device(function, common, clients)
            return stacked, jax.lax.psum(summed, AXIS)

        body = jax.shard_map(
            on_each,
            mesh=self.mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=(P(AXIS), P()),
            check_vma=False,  # a client's loop has its own length, which the checker takes for a mismatch
        )
        return body(common, clients)

    def _on_device(self, function: Callable, common: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
        count = jax.tree.leaves(clients)[0].shape[0]
        chunk = min(self.chunk or count, count)

        def run(block: PyTree) -> tuple[PyTree, PyTree]:
            """A chunk; a single client is not vmapped, so that it takes just its own steps."""
            if chunk > 1:
                stacked, each = jax.vmap(function, in_axes=(None, 0))(common, block)
                return stacked, jax.tree.map(lambda x: jnp.sum(x, axis=0), each)
            stacked, one = function(common, jax.tree.map(lambda x: x[0], block))
            return jax.tree.map(lambda x: x[None], stacked), one

        if chunk == count:
            return run(clients)

        def step(summed: PyTree, block: PyTree) -> tuple[PyTree, PyTree]:
            stacked, more = run(block)
            return tree.add(summed, more), stacked

        blocks = jax.tree.map(lambda x: x.reshape(count // chunk, chunk, *x.shape[1:]), clients)
        zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, tree.take(blocks, 0))[1])
        summed, stacked = jax.lax.scan(step, zeros, blocks)
        return jax.tree.map(lambda x: x.reshape(count, *x.shape[2:]), stacked), summed

    def __str__(self) -> str:
        if self.mesh:
            return f"sharded({self.num_devices}{f', {self.chunk}' if self.chunk else ''})"
        return f"chunked({self.chunk})" if self.chunk else "vmapped"


vmapped = Layout()
"""All clients of the cohort at once."""


@validate_arguments
def chunked(size: Count) -> Layout:
    """`size` clients at a time: less memory; with 1, each client takes just the steps it needs."""
    return Layout(chunk=size)


@validate_arguments
def sharded(devices: Count | Mesh, chunk: Count | None = None) -> Layout:
    """The cohort spread over devices (the first so many, or a mesh with one axis), each in chunks if asked.

    Raises InputError if there are not so many devices, and in several processes if these are not all that there are.
    CPU cores become devices with `jax_num_cpu_devices`, set before anything is computed.
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
    if len({device.process_index for device in mesh.devices}) < jax.process_count():
        raise InputError(
            f"layout: {mesh.size} devices leave some of the {jax.process_count()} processes without one. Use all "
            f"{jax.device_count()}."
        )
    return Layout(chunk=chunk, mesh=mesh)
