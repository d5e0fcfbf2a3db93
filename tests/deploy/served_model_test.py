"""Wherever a user starts, the same model is served, and its folder is whole."""

import hashlib
import re
import unittest

from support import ROOT

# Where the model is named, by a pattern whose group is its name below models/.
PLACES = {
    "README.md": r"polysketch-server --model models/(\w+) &",
    "scripts/quickstart": r"\nmodel=models/(\w+)\n",  # where PyPI cannot be reached
    "cmake/PolysketchInstall.cmake": r"install\(DIRECTORY models/(\w+) ",
    "deploy/wheel/polysketch_server/__init__.py": r"\"models/(\w+)\"",
    "deploy/debian/server.json": r"/usr/share/polysketch/models/(\w+)\"",
    "deploy/compose.yaml": r":-\.\./models/(\w+)\}",
    "deploy/haproxy/compose.yaml": r":-\.\./\.\./models/(\w+)\}",
    "deploy/kubernetes/base/kustomization.yaml": r"POLYSKETCH_MODEL=/models/(\w+)\n",
    "deploy/docker/Dockerfile": r"\bmodels/(\w+)\b",
    "deploy/docker/Dockerfile.cuda": r"\bmodels/(\w+)\b",
    "docs/operations.md": r"polysketch-server --model models/(\w+) ",
}


def served() -> str:
    """The model of the tree that the quick start serves where it can fetch none."""
    return re.search(PLACES["scripts/quickstart"], (ROOT / "scripts/quickstart").read_text())[1]


class ServedModel(unittest.TestCase):
    def test_every_place_names_it(self):
        for path, pattern in PLACES.items():
            with self.subTest(path):
                self.assertEqual(set(re.findall(pattern, (ROOT / path).read_text())), {served()})

    def test_it_is_whole(self):
        folder = ROOT / "models" / served()
        listed = dict(reversed(line.split()) for line in (folder / "SHA256SUMS").read_text().splitlines())
        wanted = {"config.json", "model.safetensors", "tokenizer.model", "tokenizer.json", "tokenizer_config.json"}
        self.assertEqual(set(listed), wanted)
        for name, checksum in listed.items():
            self.assertEqual(hashlib.sha256((folder / name).read_bytes()).hexdigest(), checksum, name)
        self.assertLess(sum(file.stat().st_size for file in folder.iterdir()), 12e6)


if __name__ == "__main__":
    unittest.main()
