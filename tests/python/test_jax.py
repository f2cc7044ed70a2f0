"""The package on JAX arrays of the CPU: bfloat16 and integers through DLPack, the result as a JAX array."""

import monomoe
import numpy as np
import pytest
from layers import BF16, stacked, tokens

jax = pytest.importorskip("jax", reason="jax is not installed: pip install -r tests/python/requirements-torch.txt")


def test_same_bits():
    rng = np.random.default_rng(9)
    arrays, _ = stacked(rng, "nvfp4", 4, 256, 64)
    context = monomoe.Context("cpu")
    weights = monomoe.Weights(context, monomoe.StackedExperts("nvfp4", *arrays))
    workspace = monomoe.Workspace(weights, topk=2, capacity=10)
    x, ids, route_weights = tokens(rng, 10, 256, 4, 2)
    want = monomoe.forward(weights, workspace, x, ids, route_weights)
    y = monomoe.forward(weights, workspace, jax.numpy.asarray(x), jax.numpy.asarray(ids.astype(np.int32)), jax.numpy.asarray(route_weights))
    assert isinstance(y, jax.Array) and y.dtype == jax.numpy.bfloat16 and np.asarray(y).tobytes() == want.tobytes()
    with pytest.raises(monomoe.UsageError, match="out is a JAX array, which cannot be written"):
        monomoe.forward(weights, workspace, x, ids, route_weights, out=jax.numpy.zeros((10, 256), jax.numpy.bfloat16))
    codes = [jax.numpy.asarray(array) for array in arrays]
    again = monomoe.Weights(context, monomoe.StackedExperts("nvfp4", *codes))
    assert monomoe.forward(again, workspace, x, ids, route_weights).tobytes() == want.tobytes()
    assert want.dtype == BF16
