"""Ranks in several processes: a context for one rank of a torch process group, and memory that all its ranks can write.

    context = monomoe.torch.distributed.join(group)
    layer = MoELayer.from_checkpoint("DIR", layer=3, max_tokens=8192, context=context)
    y = layer(x, topk_ids, topk_weights)          # collective: each rank brings its own tokens, any number

Every rank makes its contexts, workspaces and calls in the same order. Memory comes from torch symmetric memory on GPUs, whatever its backend
(its own, NCCL windows or NVSHMEM: torch.distributed._symmetric_memory.set_backend), from a shared file on the CPU, or from an object of the
caller with allocate(num_bytes).
"""

from __future__ import annotations

import ctypes as c
import mmap
import os
import secrets
import socket
from typing import Any, Sequence

import torch
import torch.distributed as dist

from monomoe import doctor
from monomoe.errors import UnavailableError, UsageError
from monomoe.layer import BackendName, Context, SymmetricMemory, World, _BACKENDS, choice


_ALIGNMENT = 1024  # of symmetric memory


def join(group: Any = None, *, backend: BackendName = "auto", memory: SymmetricMemory | None = None, gpu: int | None = None,
         ranks_per_gpu: int = 1, threads: int = 0, timeout_ms: int = 0) -> Context:
    """The context of this process's rank of a group (None = all processes). Collective.

    backend: as for monomoe.Context, and the same on all ranks. gpu: this process's CUDA device, None = the current one; processes that each see one
    GPU all call it 0. ranks_per_gpu: ranks that share this GPU. memory: None = shared files on the CPU, torch symmetric memory on a GPU.
    """
    if not dist.is_initialized():
        raise UsageError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    choice("backend", backend, _BACKENDS)
    group = dist.group.WORLD if group is None else group
    taken = _agree(group, _best() if backend == "auto" else backend)
    if memory is None:
        memory = SharedFiles(group) if taken == "cpu" else LocalMemory(gpu) if group.size() == 1 else TorchMemory(group, gpu)
    world = World(group.size(), group.rank(), memory, gpu, ranks_per_gpu)
    return Context(taken, threads=threads, timeout_ms=timeout_ms, world=world)  # type: ignore[arg-type]


def _best() -> str:
    """What auto would take, without a context: that would occupy the first GPU also for a process that works on another one."""
    return "cuda" if doctor()["backends"]["cuda"]["available"] else "cpu"


def _agree(group: Any, backend: str) -> str:
    backends = _gather(group, backend)
    if len(set(backends)) != 1:
        raise UnavailableError(f"the ranks of the group can run the backends {backends}, in order, wanted one for all; give backend='cpu', or make the "
                               "GPU backend available on every rank")
    return backend


def _gather(group: Any, value: Any) -> list[Any]:
    values: list[Any] = [None] * group.size()
    dist.all_gather_object(values, value, group=group)
    return values


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
        _require_equal(_gather(self._group, (num_bytes, None)))
        device = torch.device("cuda", torch.cuda.current_device() if self._gpu is None else self._gpu)
        buffer = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
        handle = symmetric.rendezvous(buffer, group=self._group)
        buffer.zero_()
        torch.cuda.synchronize(device)
        dist.barrier(group=self._group)
        return list(handle.buffer_ptrs), (buffer, handle)


class _Mapping:
    """Shared pages, mapped until this object goes."""

    def __init__(self, path: str, num_bytes: int):
        descriptor = os.open(path, os.O_RDWR)
        try:
            self._map = mmap.mmap(descriptor, num_bytes)
        finally:
            os.close(descriptor)
        self._view = (c.c_char * num_bytes).from_buffer(self._map)
        self.address = c.addressof(self._view)


class SharedFiles:
    """Files in /dev/shm, for ranks of one machine on the CPU backend. They have no name any more once all ranks have mapped them."""

    def __init__(self, group: Any):
        self._group = group
        hosts = _gather(group, (socket.gethostname(), _boot_id()))
        if len(set(hosts)) != 1:
            raise UnavailableError(f"the ranks of the group run on the machines {sorted({host for host, _ in hosts})}, wanted one; the CPU backend "
                                   "shares memory inside a machine only")

    def allocate(self, num_bytes: int) -> tuple[Sequence[int], Any]:
        size = max(num_bytes, mmap.PAGESIZE)
        path, problem = f"/dev/shm/monomoe-{os.getpid()}-{secrets.token_hex(8)}", None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            try:
                os.posix_fallocate(descriptor, 0, size)  # zeros; a full /dev/shm is told here, not by a signal later
            finally:
                os.close(descriptor)
        except OSError as error:
            problem = f"{size} bytes of {path} cannot be had ({error}); make /dev/shm larger"
        try:
            offers = _gather(self._group, (size, problem, path))
            _require_equal(offers)
            mappings = [_Mapping(other, size) for _, _, other in offers]
            dist.barrier(group=self._group)
        finally:
            if os.path.exists(path):
                os.unlink(path)
        return [mapping.address for mapping in mappings], mappings


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
