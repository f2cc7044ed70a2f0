"""./run: what it refuses before it installs or builds anything."""

import subprocess
import unittest
from pathlib import Path

RUN = Path(__file__).resolve().parent.parent.parent / "run"


class Usage(unittest.TestCase):
    def call(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([str(RUN), *arguments], capture_output=True, text=True, check=False)

    def test_help_tells_every_command_and_the_option(self):
        result = self.call("--help")
        self.assertEqual(result.returncode, 0)
        for word in ("./run build", "./run demo", "./run test ", "./run test-fast", "--no-cuda"):
            self.assertIn(word, result.stdout)

    def test_unknown_words_are_refused(self):
        for arguments in ((), ("deploy",), ("build", "--no-gpu"), ("test", "--no-cuda", "more")):
            result = self.call(*arguments)
            self.assertEqual(result.returncode, 2, arguments)
            self.assertIn("./run build", result.stderr)
            self.assertEqual(result.stdout, "")
        self.assertIn("--no-gpu is no option", self.call("build", "--no-gpu").stderr)


if __name__ == "__main__":
    unittest.main()
