"""Layout of the client axis on devices: vectorized, in chunks, or sharded."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from jax.stages import Wrapped

from fedjax_het import tree
from fedjax_het._internal.machine_memory import host_memory
from fedjax_het.errors import InputError
from fedjax_het.types import Array, HostArray, PyTree
from fedjax_het.validation import Count, validate_arguments

AXIS = "clients"


@dataclass(frozen=True)
class Layout:
    """How many clients train at the same time, and on which devices.

    Args:
        chunk: The number of clients vectorized at a time on each device; chunks run sequentially. None: all clients.
        mesh: A device mesh with the single axis `clients`; None: the default device.
    """

    chunk: int | None = None
    mesh: Mesh | None = None

    @property
    def num_devices(self) -> int:
        return self.mesh.size if self.mesh else 1

    @property
    def sharding(self) -> NamedSharding | None:
        """The sharding of data and server state: replicated over the mesh. None without a mesh."""
        return NamedSharding(self.mesh, P()) if self.mesh else None

    @property
    def device_memory(self) -> float:
        """The memory of one device in bytes; for a CPU its share of memory and swap. Infinity if unknown."""
        devices = self.mesh.local_devices if self.mesh else jax.local_devices()[:1]
        if devices[0] not in jax.local_devices():
            return float("inf")  # an absent device, for ahead-of-time compilation
        if limit := (devices[0].memory_stats() or {}).get("bytes_limit"):
            return limit
        return host_memory() // len(devices) if devices[0].platform == "cpu" else float("inf")

    def constrain_replicated(self, values: PyTree) -> PyTree:
        """Constrain values inside a compiled function to be replicated over the mesh."""
        return jax.lax.with_sharding_constraint(values, self.sharding) if self.mesh else values

    @property
    def client_sharding(self) -> NamedSharding | None:
        """The sharding of client states [seeds, clients, ...] between rounds: by clients. None without a mesh."""
        return NamedSharding(self.mesh, P(None, AXIS)) if self.mesh else None

    def count_client_rows(self, num_clients: int) -> int:
        """The number of rows of client states: at least one per client, and the same number on each device."""
        return self.round_up(num_clients) if self.mesh else num_clients

    def jit(self, function: Callable, results: PyTree, **options) -> Wrapped:
        """jax.jit with result shardings, a prefix tree that is ignored without a mesh."""
        return jax.jit(function, **({"out_shardings": results} if self.mesh else {}), **options)

    def replicate(self, values: PyTree) -> PyTree:
        """Copy host values, equal in every process, to all devices of the mesh."""
        sharding = self.sharding
        if sharding is None or sharding.is_fully_addressable:
            return jax.device_put(values, sharding)
        # device_put would send everything to every process to compare the values.
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(np.shape(x), sharding, lambda index: x[index]), values
        )

    def round_up(self, num_clients: int) -> int:
        """The smallest number of slots that fills every device and chunk; slots without a client are padding."""
        per_device = -(-num_clients // self.num_devices)
        chunk = self.chunk and min(self.chunk, per_device)
        return self.num_devices * (-(-per_device // chunk) * chunk if chunk else per_device)

    def chunk_size(self, num_slots: int) -> int:
        """The number of clients that a device trains at the same time, out of its `num_slots`."""
        return min(self.chunk or num_slots, num_slots)

    def take(self, stack: PyTree, index: HostArray) -> PyTree:
        """Gather the rows at `index` of client states. The stack is sharded by rows, the result by slots.

        Each device sends one row per slot to that slot's device, which selects the owner's row. The communication is
        proportional to the number of slots on all devices, not to the population.

        Args:
            stack: Leaves [rows, ...].
            index: [slots]. Rows and slots should be multiples of the number of devices; otherwise XLA plans the gather.
        """
        num_rows = max((len(leaf) for leaf in jax.tree.leaves(stack)), default=0)
        if not self.mesh or num_rows % self.num_devices or len(index) % self.num_devices:
            return tree.take(stack, index)

        num_own, num_slots = num_rows // self.num_devices, len(index) // self.num_devices

        def on_each_device(own: PyTree, index: Array) -> PyTree:
            requested = tree.take(own, index % num_own)  # [all slots]; arbitrary for rows of other devices
            received = jax.tree.map(lambda rows: jax.lax.all_to_all(rows, AXIS, 0, 0, tiled=True), requested)
            own_slots = jax.lax.axis_index(AXIS) * num_slots + jnp.arange(num_slots)
            return tree.take(received, index[own_slots] // num_own * num_slots + jnp.arange(num_slots))

        body = jax.shard_map(
            on_each_device, mesh=self.mesh, in_specs=(P(AXIS), P()), out_specs=P(AXIS), check_vma=False
        )
        return body(stack, jnp.asarray(index))

    def map(self, function: Callable[[PyTree, PyTree], PyTree], common: PyTree, clients: PyTree) -> PyTree:
        """Map function(common, one client) over the leading axis of `clients`, whose length is a `round_up(...)`."""
        return self.map_and_sum(lambda common, client: (function(common, client), {}), common, clients)[0]

    def map_and_sum(
        self, function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]], common: PyTree, clients: PyTree
    ) -> tuple[PyTree, PyTree]:
        """Map a function that returns two trees; the first is stacked, the second summed over clients.

        Sums are carried from chunk to chunk, so summed trees take the memory of one chunk. The compiler removes stacks
        that are never read.

        Args:
            function: (common, one client) -> (tree to stack, tree to sum).
            common: The argument that all clients share.
            clients: Leaves [slots, ...], their number a `round_up(...)`.

        Returns:
            (Leaves [slots, ...], sums.)
        """
        if not self.mesh:
            return self._on_device(function, common, clients)

        def on_each_device(common: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
            stacked, summed = self._on_device(function, common, clients)
            return stacked, jax.lax.psum(summed, AXIS)

        body = jax.shard_map(
            on_each_device,
            mesh=self.mesh,
            in_specs=(P(), P(AXIS)),
            out_specs=(P(AXIS), P()),
            check_vma=False,  # client loops differ in length, which the checker rejects
        )
        return body(common, clients)

    def _on_device(self, function: Callable, common: PyTree, clients: PyTree) -> tuple[PyTree, PyTree]:
        count = jax.tree.leaves(clients)[0].shape[0]
        chunk = self.chunk_size(count)

        @partial(jax.jit, inline=True)  # so that the loop reuses the trace that gives the shapes of the sums
        def run(common: PyTree, block: PyTree) -> tuple[PyTree, PyTree]:
            """Run one chunk. A single client is not vmapped, so it runs only its own steps."""
            if chunk > 1:
                stacked, partial_sums = jax.vmap(function, in_axes=(None, 0))(common, block)
                return stacked, tree.sum_rows(partial_sums)
            stacked, summed = function(common, jax.tree.map(lambda x: x[0], block))
            return jax.tree.map(lambda x: x[None], stacked), summed

        if chunk == count:
            return run(common, clients)

        def step(summed: PyTree, block: PyTree) -> tuple[PyTree, PyTree]:
            stacked, added = run(common, block)
            return tree.add(summed, added), stacked

        blocks = jax.tree.map(lambda x: x.reshape(count // chunk, chunk, *x.shape[1:]), clients)
        zeros = jax.tree.map(
            lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(run, common, tree.take(blocks, 0))[1]
        )
        with jax.named_scope("chunks"):
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
    """A layout that trains `size` clients at a time, to save memory. With 1, no client runs padding steps."""
    return Layout(chunk=size)


@validate_arguments
def sharded(devices: Count | Mesh, chunk: Count | None = None) -> Layout:
    """A layout with the cohort sharded over devices.

    To use CPU cores as devices, set `jax_num_cpu_devices` before the first computation.

    Args:
        devices: The number of devices, or a mesh.
        chunk: The number of clients at a time on each device (default None, all).

    Raises:
        InputError: There are fewer devices, or one of several processes would have no device.
    """
    if isinstance(devices, Mesh):
        mesh = Mesh(devices.devices.reshape(-1), (AXIS,))
    else:
        available = jax.devices()
        if not 1 <= devices <= len(available):
            raise InputError(
                f"layout: {devices} devices requested, {len(available)} found ({available[0].platform}). On a CPU "
                "call jax.config.update('jax_num_cpu_devices', ...) first."
            )
        mesh = Mesh(np.array(available[:devices]), (AXIS,))
    if len({device.process_index for device in mesh.devices}) < jax.process_count():
        raise InputError(
            f"layout: {mesh.size} devices leave some of the {jax.process_count()} processes without one. Use all "
            f"{jax.device_count()}."
        )
    return Layout(chunk=chunk, mesh=mesh)
