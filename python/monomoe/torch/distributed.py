"""Ranks in several processes: a context for one rank of a torch process group, and memory that all its ranks can write.

    context = monomoe.torch.distributed.join(group)
    layer = MoELayer.from_checkpoint("DIR", layer=3, max_tokens=8192, context=context)
    y = layer(x, topk_ids, topk_weights)          # collective: each rank brings its own tokens, any number

Every rank makes its contexts, workspaces and calls in the same order. Memory comes from the library's own exchange (WorldMemory), on the CPU and on
GPUs of one machine: torch symmetric memory refuses processes that each see their GPU as device 0 ("overlapping devices"), and the exchange knows
GPUs by their UUID. Ranks on several machines get torch symmetric memory (TorchMemory), whatever its backend: its own, NCCL windows or NVSHMEM
(torch.distributed._symmetric_memory.set_backend). memory= takes either, or an object of the caller with allocate(num_bytes).
"""

from __future__ import annotations

import ctypes as c
import secrets
import socket
from typing import Any, Sequence

import torch
import torch.distributed as dist

from monomoe import _abi, doctor
from monomoe._arguments import UINT32, integer
from monomoe._library import Handle, library
from monomoe.errors import UnavailableError, UsageError
from monomoe.layer import BackendName, Context, SymmetricMemory, World, _BACKENDS, choice


_ALIGNMENT = 1024  # of symmetric memory


def join(group: Any = None, *, backend: BackendName = "auto", memory: SymmetricMemory | None = None, gpu: int | None = None,
         ranks_per_gpu: int | None = None, threads: int = 0, timeout_ms: int = 0) -> Context:
    """The context of this process's rank of a group (None = all processes). Collective.

    backend: as for monomoe.Context, and the same on all ranks. gpu: this process's CUDA device, None = the current one; processes that each see one
    GPU all call it 0. ranks_per_gpu: ranks that share this GPU, None = as many as tell its UUID. memory: None = the library's own exchange, or, for
    GPUs of several machines, torch symmetric memory.
    """
    if not dist.is_initialized():
        raise UsageError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    choice("backend", backend, _BACKENDS)
    group = dist.group.WORLD if group is None else group
    taken = _agree(group, _best() if backend == "auto" else backend)
    if taken == "cuda" and ranks_per_gpu is None:
        ranks_per_gpu = _ranks_on_this_gpu(group, gpu)
    if memory is None:
        memory = LocalMemory(gpu) if taken == "cuda" and group.size() == 1 else _exchange(group, taken, gpu, timeout_ms)
    world = World(group.size(), group.rank(), memory, gpu, ranks_per_gpu or 1)
    return Context(taken, threads=threads, timeout_ms=timeout_ms, world=world)  # type: ignore[arg-type]


def _exchange(group: Any, backend: str, gpu: int | None, timeout_ms: int) -> SymmetricMemory:
    if backend == "cuda" and len(set(gather(group, _host()))) != 1:
        return TorchMemory(group, gpu)
    return WorldMemory(group, backend, gpu, timeout_ms=timeout_ms)


def _ranks_on_this_gpu(group: Any, gpu: int | None) -> int:
    device = torch.cuda.current_device() if gpu is None else gpu
    devices = doctor()["backends"]["cuda"]["devices"]
    own = devices[device] if device < len(devices) else {"uuid": f"none-{group.rank()}", "name": ""}
    if group.size() > 1 and " MIG " in own["name"]:
        own = dict(own, problem=f"GPU {device} is a MIG instance ({own['name']}), whose memory no other process can map; give the ranks whole GPUs")
    told = gather(group, own)
    for rank, other in enumerate(told):
        if "problem" in other:
            raise UnavailableError(f"rank {rank}: {other['problem']}")
    return sum(other["uuid"] == own["uuid"] for other in told)


def _best() -> str:
    """What auto would take, without a context: that would occupy the first GPU also for a process that works on another one."""
    return "cuda" if doctor()["backends"]["cuda"]["available"] else "cpu"


def _agree(group: Any, backend: str) -> str:
    backends = gather(group, backend)
    if len(set(backends)) != 1:
        raise UnavailableError(f"the ranks of the group can run the backends {backends}, in order, wanted one for all; give backend='cpu', or make the "
                               "GPU backend available on every rank")
    return backend


def gather(group: Any, value: Any) -> list[Any]:
    """Each rank's value, on all ranks. Collective."""
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


def require_one_machine(group: Any, reason: str = "ranks share memory inside a machine only") -> None:
    """Raises the same on all ranks if they run on several machines. Collective."""
    hosts = gather(group, _host())
    if len(set(hosts)) != 1:
        raise UnavailableError(f"the ranks of the group run on the machines {sorted({host for host, _ in hosts})}, wanted one; {reason}")


def _require_equal(offers: Sequence[tuple[Any, ...]]) -> None:
    """(bytes, problem or None, ...) of each rank: raises the same on all ranks."""
    for rank, (size, problem, *_) in enumerate(offers):
        if problem is not None:
            raise UnavailableError(f"rank {rank}: {problem}")
        if size != offers[0][0]:
            raise UsageError(f"rank {rank} wants {size} bytes of symmetric memory and rank 0 {offers[0][0]}; make the workspace with the same topk, sizes "
                             "and capacity on all ranks")


class LocalMemory:
    """Memory of this process's GPU, for a world of one rank."""

    def __init__(self, gpu: int | None = None):
        self._gpu = gpu

    def allocate(self, num_bytes: int) -> tuple[Sequence[int], Any]:
        device = torch.device("cuda", torch.cuda.current_device() if self._gpu is None else self._gpu)
        buffer = torch.zeros(num_bytes + _ALIGNMENT, dtype=torch.uint8, device=device)
        torch.cuda.synchronize(device)
        return [-(-buffer.data_ptr() // _ALIGNMENT) * _ALIGNMENT], buffer


class TorchMemory:
    """torch symmetric memory. The GPUs must be able to write each other's memory."""

    def __init__(self, group: Any, gpu: int | None = None):
        self._group, self._gpu = group, gpu

    def allocate(self, num_bytes: int) -> tuple[Sequence[int], Any]:
        import torch.distributed._symmetric_memory as symmetric
        _require_equal(gather(self._group, (num_bytes, None)))
        device = torch.device("cuda", torch.cuda.current_device() if self._gpu is None else self._gpu)
        buffer = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(buffer, group=self._group)
        buffer.zero_()
        torch.cuda.synchronize(device)
        dist.barrier(group=self._group)
        return list(handle.buffer_ptrs), (buffer, handle)


class WorldMemory:
    """The library's own exchange, for ranks of one machine: host memory as anonymous files, GPU memory as file descriptors of virtual memory or, where
    the driver gives none, CUDA IPC handles. It works whatever GPUs each process sees, in any order. The group only agrees on a name; making one is
    collective. sharing: "file" or "ipc" instead of what works. `how` says which it was, of the last allocation.
    """

    def __init__(self, group: Any, backend: str, gpu: int | None = None, *, sharing: str = "auto", timeout_ms: int = 0):
        require_one_machine(group, "give memory=TorchMemory(group) if their GPUs reach each other")
        kinds = {member.name.lower(): member for member in _abi.Sharing}
        name = gather(group, secrets.token_hex(16))[0].encode()
        options = _abi.WorldOptions(c.sizeof(_abi.WorldOptions), name, group.size(), group.rank(), integer("timeout_ms", timeout_ms, UINT32),
                                    choice("sharing", sharing, kinds))
        self._world = Handle(lambda pointer: library.monomoe_world_leave(pointer, None), library.monomoe_world_join, c.byref(options))
        self._size, self._backend, self._gpu = group.size(), choice("backend", backend, _BACKENDS), gpu
        self.how = ""

    def allocate(self, num_bytes: int) -> tuple[Sequence[int], Any]:
        is_gpu = self._backend == _abi.Backend.CUDA
        gpu = 0 if not is_gpu else (torch.cuda.current_device() if self._gpu is None else self._gpu) + 1
        memory = Handle(library.monomoe_world_memory_destroy, library.monomoe_world_memory_create, self._world.pointer, self._backend, gpu,
                        integer("num_bytes", num_bytes, (0, 2**63 - 1)), parents=(self._world,))
        self.how = library.monomoe_world_memory_how(memory.pointer).decode()
        peers = library.monomoe_world_memory_peers(memory.pointer)
        return [peers[rank] or 0 for rank in range(self._size)], memory


def _host() -> tuple[str, str]:
    """The machine, as far as a process can tell."""
    return socket.gethostname(), _boot_id()


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
