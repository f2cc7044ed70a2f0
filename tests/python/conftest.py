"""Options shared by the Python tests: where the built programs are."""

import pathlib
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def pytest_addoption(parser):
    parser.addoption("--build-dir", type=pathlib.Path, default=REPOSITORY / "build",
                     help="CMake build folder with the programs under test (default: build/ of this repository)")


def pytest_configure(config):
    # The package as the build lays it out: links to python/monomoe beside one to the library.
    sys.path.insert(0, str(config.getoption("--build-dir").resolve() / "python"))


@pytest.fixture(scope="session")
def examples():
    return REPOSITORY / "examples"


@pytest.fixture(scope="session")
def build_dir(request):
    return request.config.getoption("--build-dir").resolve()


@pytest.fixture(scope="session")
def built_program(build_dir):
    """Finds a built program by name; a program that was not built is a failure, never a skip."""

    def find(name):
        for candidate in (build_dir / name, build_dir / "tests" / name):
            if candidate.is_file():
                return candidate
        pytest.fail(f"{name} is not in {build_dir} or its tests/ folder: build it, or give the folder with --build-dir")

    return find


@pytest.fixture(scope="session")
def sglang(build_dir, tmp_path_factory):
    """SGLang with its plugins loaded, as a process that is about to build a model; and monomoe from the build. Its folder for files."""
    if not (build_dir / "sglang-packages" / "sglang").is_dir():
        pytest.skip(f"SGLang is not in {build_dir}/sglang-packages: ./run test installs it, or pip install --no-deps --target there -r "
                    "tests/python/requirements-sglang.txt")
    import sglang_world
    scratch = tmp_path_factory.mktemp("sglang")
    sglang_world.add_paths(build_dir, scratch)
    sglang_world.load_plugins()
    sglang_world.serve(scratch / "store")
    return scratch
