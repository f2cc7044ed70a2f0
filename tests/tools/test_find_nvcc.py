"""cmake/find_nvcc.cmake with programs that answer like nvcc: which one it takes, and why not another."""

import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent.parent.parent / "cmake" / "find_nvcc.cmake"
# Tells its release; asked to compile, writes the file after -o or fails with nvcc's sentence.
FAKE = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release {short}, V{version}"; exit 0; fi
{compile}
"""
FAILS = "echo 'error -- unsupported GNU version! gcc versions later than 13 are not supported!' >&2; exit 1"


class FindNvcc(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def fake(self, place: str, version: str, compiles: bool = True) -> Path:
        program = self.folder / place / "bin" / "nvcc"
        program.parent.mkdir(parents=True)
        text = FAKE.format(short=".".join(version.split(".")[:2]), version=version, compile="exit 0" if compiles else FAILS)
        program.write_text(text, encoding="utf-8")
        program.chmod(0o755)
        return program

    def answer(self, first: Path, home: Path | None = None, known: str = "") -> str:
        """With first's folder in front of PATH and CUDA_HOME around home."""
        environment = {key: value for key, value in os.environ.items() if key not in ("CUDA_HOME", "CUDA_PATH")}
        environment["PATH"] = f"{first.parent}:/usr/bin:/bin"
        if home is not None:
            environment["CUDA_HOME"] = str(home.parent.parent)
        command = [shutil.which("cmake") or "cmake", f"-DKNOWN={known}", "-P", str(SCRIPT)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    def refused(self, answer: str, program: Path, reason: str) -> None:
        """Another one of this machine is taken, or none, and then the sentence is there."""
        self.assertFalse(answer.startswith(str(program)), answer)
        if answer.startswith("none: "):
            self.assertIn(f"{program} {reason}", answer)

    def test_path_comes_first(self):
        program = self.fake("path", "12.4.131")
        self.assertEqual(self.answer(program, home=self.fake("home", "13.0.88")), f"{program} 12.4.131")

    def test_an_old_one_is_passed_over(self):
        old = self.fake("path", "11.8.89")
        new = self.fake("home", "12.10.1")  # 12.10 is newer than 12.4
        self.assertEqual(self.answer(old, home=new), f"{new} 12.10.1")
        self.refused(self.answer(old), old, "is release 11.8.89, wanted 12.4 or newer")

    def test_one_that_cannot_compile_is_passed_over(self):
        broken = self.fake("path", "13.0.88", compiles=False)
        new = self.fake("home", "12.9.86")
        self.assertEqual(self.answer(broken, home=new), f"{new} 12.9.86")
        self.refused(self.answer(broken), broken, "cannot compile and link a small program here (error -- unsupported GNU version!")

    def test_a_known_one_is_not_tried_again(self):
        program = self.fake("path", "13.0.88", compiles=False)
        self.assertEqual(self.answer(program, known=f"{program} 13.0.88"), f"{program} 13.0.88")
        self.refused(self.answer(program, known=f"{program} 12.9.86"), program, "cannot compile")

    def test_a_program_that_is_no_nvcc(self):
        program = self.fake("path", "13.0.88")
        program.write_text("#!/bin/sh\necho hello\n", encoding="utf-8")
        self.refused(self.answer(program), program, "does not tell its release")


if __name__ == "__main__":
    unittest.main()
