"""The ctypes mirrors against the headers: every size, offset, enum value and function name, as the C compiler sees them."""

import ctypes
import re
import shutil
import subprocess

import pytest
from conftest import REPOSITORY
from monomoe import _abi


def compile_and_run(tmp_path, body):
    compiler = next((c for c in ("cc", "gcc", "g++", "c++") if shutil.which(c)), None)
    assert compiler, "no C or C++ compiler on PATH"
    source = tmp_path / "layout.c"
    source.write_text('#include <stdio.h>\n#include <stddef.h>\n#include "monomoe/checkpoint.h"\n#include "monomoe/world.h"\nint main(void) {\n' + body + "return 0; }\n")
    language = ["-x", "c++"] if compiler.endswith("++") else []
    subprocess.run([compiler, *language, "-I", str(REPOSITORY / "include"), str(source), "-o", str(tmp_path / "layout")], check=True)
    lines = subprocess.run([tmp_path / "layout"], check=True, capture_output=True, text=True).stdout.splitlines()
    return {name: int(value) for name, value in (line.split() for line in lines)}


def test_structs(tmp_path):
    body = ""
    for name, mirror in _abi.STRUCTS.items():
        body += f'printf("{name} %zu\\n", sizeof(monomoe_{name}));\n'
        for field, _ in mirror._fields_:
            body += f'printf("{name}.{field} %zu\\n", offsetof(monomoe_{name}, {field}));\n'
    found = compile_and_run(tmp_path, body)
    for name, mirror in _abi.STRUCTS.items():
        for field, _ in mirror._fields_:
            assert getattr(mirror, field).offset == found[f"{name}.{field}"], f"{name}.{field}"
        # A struct with a struct_size may have grown at its end since; the others are of one size for good.
        if mirror._fields_[0][0] == "struct_size":
            assert ctypes.sizeof(mirror) <= found[name], name
        else:
            assert ctypes.sizeof(mirror) == found[name], name


def test_enums(tmp_path):
    pairs = [(prefix + member.name, member.value) for prefix, enum in _abi.ENUMS.items() for member in enum]
    pairs += [("MONOMOE_" + member.name, member.value) for member in _abi.Format] + [("MONOMOE_ABI_VERSION", _abi.ABI_VERSION)]
    found = compile_and_run(tmp_path, "".join(f'printf("{name} %d\\n", (int){name});\n' for name, _ in pairs))
    assert found == dict(pairs)


def test_functions_are_in_the_headers():
    text = "".join((REPOSITORY / "include/monomoe" / name).read_text() for name in ("monomoe.h", "checkpoint.h", "world.h"))
    declared = set(re.findall(r"monomoe_(\w+)\(", text))
    assert set(_abi.FUNCTIONS) <= declared


@pytest.mark.parametrize("status", [s for s in _abi.Status if s != _abi.Status.OK])
def test_every_status_has_its_exception(status):
    import monomoe
    from monomoe.errors import BY_STATUS
    assert BY_STATUS[status].status == status and issubclass(BY_STATUS[status], monomoe.Error)
