"""Ranks in several processes on the CPU: torch.distributed with gloo, symmetric memory in shared files."""

import json
import pathlib
import re
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install -r tests/python/requirements-torch.txt")


@pytest.mark.parametrize("size", [2, 3])
def test_processes_have_the_bits_of_one(size, tmp_path, build_dir, examples):
    script = pathlib.Path(__file__).with_name("world_rank.py")
    outs = [tmp_path / f"rank{rank}.json" for rank in range(size)]
    ranks = [subprocess.Popen([sys.executable, script, str(rank), str(size), str(tmp_path / "store"), str(build_dir / "python"), str(examples), str(out)],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for rank, out in enumerate(outs)]
    texts = [process.communicate(timeout=300)[0] for process in ranks]
    assert [process.returncode for process in ranks] == [0] * size, "\n".join(texts)
    for rank, out in enumerate(outs):
        found = json.loads(out.read_text())
        assert [name for name in ("checkpoint", "compiled", "stacked", "deep_gemm", "stats", "after") if found[name] is not True] == [], found
        assert found["refusal"] == ("UsageError" if rank == 0 else "RejectedError")
        assert re.search(r"capacity is \d+ on rank \d and \d+ on rank \d", found["capacity"]), found["capacity"]
        assert found["how"] == "an anonymous file of the host's memory"
        assert found["files"] == []


def test_join_wants_a_group():
    import monomoe
    from monomoe.torch import distributed
    with pytest.raises(monomoe.UsageError, match="torch.distributed is not initialised"):
        distributed.join()
