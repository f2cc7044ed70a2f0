"""What a call costs in Python before the library does anything: python bench/python_overhead.py (PYTHONPATH=build/python, or an installed wheel).

CPU time of the calling thread, best of 40 rounds, on CPU tensors of one token. "binding" replaces the library's function by one of the C library
that returns at once, through the same ctypes call, so checks, struct and foreign call are in the figure and the layer is not. "0 tokens" is the
real call of the CPU backend with nothing to do.
"""

import ctypes
import pathlib
import sys
import time

import monomoe

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples" / "tiny-moe-nvfp4"


def best_us(call, repeats=500, rounds=40):
    best = float("inf")
    for _ in range(rounds):
        begin = time.thread_time_ns()
        for _ in range(repeats):
            call()
        best = min(best, (time.thread_time_ns() - begin) / repeats / 1000)
    return best


def show(name, call):
    print(f"{name:58s} {best_us(call):7.2f} us")


def numpy_calls():
    import ml_dtypes
    import numpy as np
    from monomoe import calls
    checkpoint = monomoe.Checkpoint(EXAMPLE)
    weights = checkpoint.weights(monomoe.Context("cpu"), 0)
    workspace = monomoe.Workspace(weights, topk=4, capacity=1)
    x = np.ones((1, 256), ml_dtypes.bfloat16)
    ids, route_weights = checkpoint.route(0, x)
    out = np.empty_like(x)
    show("NumPy, monomoe.forward into out: views, checks, struct", lambda: calls._Call(monomoe.Tokens(x, ids, route_weights, None, out), workspace,
                                                                                      "current"))
    show("NumPy, monomoe.forward, 0 tokens", lambda: monomoe.forward(weights, workspace, x[:0], ids[:0], route_weights[:0], out=out[:0]))


def torch_calls():
    import torch
    import monomoe.torch
    from monomoe.torch import layer as module
    layer = monomoe.torch.MoELayer.from_checkpoint(EXAMPLE, 0, max_tokens=1, context=monomoe.Context("cpu"))
    x = torch.ones((1, 256), dtype=torch.bfloat16)
    ids, weights = monomoe.Checkpoint(EXAMPLE).route(0, x)
    out, none = torch.empty_like(x), (x[:0], ids[:0], weights[:0])
    show("torch, layer, 0 tokens", lambda: layer(*none))
    module._forward_rank = ctypes.CDLL(None)["getpid"]  # takes any arguments, returns at once
    module.fail = lambda status: None
    show("torch, binding: layer.run into out", lambda: layer.run(x, ids, weights, None, out))
    show("torch, binding: layer.run", lambda: layer.run(x, ids, weights, None, None))
    show("torch, binding: layer(...)", lambda: layer(x, ids, weights))
    show("torch, binding: torch.ops.monomoe.moe_forward", lambda: torch.ops.monomoe.moe_forward(x, ids, weights, None, layer.key))
    identity = torch.nn.Identity()
    show("  of it torch's own: calling a module", lambda: identity(x))
    show("  of it torch's own: empty_like", lambda: torch.empty_like(x))


if __name__ == "__main__":
    print(f"monomoe {monomoe.__version__}, Python {sys.version.split()[0]}")
    numpy_calls()
    try:
        torch_calls()
    except ImportError as error:
        print(f"skipped: {error}")
