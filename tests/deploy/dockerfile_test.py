"""What of the Dockerfiles can be checked without building them. deploy/docker/test-image builds and runs the CPU image."""

import json
import re
import subprocess
import sys
import unittest

from support import BIN, DEPLOY, ROOT

sys.path.insert(0, str(DEPLOY / "docker"))
from image import instructions  # noqa: E402


class Stage:
    def __init__(self, base, name):
        self.base, self.name, self.steps = base, name, []

    def all(self, word):
        return [rest for step, rest in self.steps if step == word]


def stages(path):
    found = []
    for word, rest in instructions(path):
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.append(Stage(base, name or None))
        elif found:
            found[-1].steps.append((word, rest))
    return found


FILES = [DEPLOY / "docker/Dockerfile", DEPLOY / "docker/Dockerfile.cuda"]


class Dockerfiles(unittest.TestCase):
    def for_each(self):
        return [(path, stages(path)) for path in FILES]

    def test_the_base_is_an_argument_and_stages_are_known(self):
        for path, all_stages in self.for_each():
            names = {stage.name for stage in all_stages if stage.name}
            self.assertIn(("ARG", "BASE=debian:bookworm-slim"), list(instructions(path)))
            self.assertEqual(all_stages[0].base, "${BASE}")
            for stage in all_stages:
                self.assertIn(stage.base, names | {"${BASE}"}, path.name)

    def test_what_is_copied_exists(self):
        for path, all_stages in self.for_each():
            names = {stage.name for stage in all_stages}
            built = " ".join(all_stages[-2].all("RUN"))
            for stage in all_stages:
                for copy in stage.all("COPY"):
                    *sources, _ = copy.split()
                    if sources[0].startswith("--from="):
                        self.assertIn(sources[0].removeprefix("--from="), names)
                        for source in sources[1:]:
                            self.assertIn(f"build/cpu/bin/{source.rsplit('/', 1)[1]}", built, path.name)
                    else:
                        for source in sources:
                            self.assertTrue((ROOT / source).exists(), source)

    def test_it_starts_without_a_shell_as_nobody_special(self):
        text = subprocess.run([BIN / "polysketch-server", "--help"], capture_output=True, text=True, check=True)
        for path, all_stages in self.for_each():
            last = all_stages[-1]
            self.assertEqual(last.all("USER"), ["10001:10001"], path.name)
            self.assertEqual(last.all("STOPSIGNAL"), ["SIGTERM"])
            entry = json.loads(last.all("ENTRYPOINT")[0]) + json.loads(last.all("CMD")[0])
            self.assertEqual(entry[0], "polysketch-server")
            ports = [value.removeprefix("0.0.0.0:") for value in entry[2:8:2]]
            self.assertEqual(last.all("EXPOSE"), [" ".join(ports)], path.name)
            self.assertIn("--http-listen", entry)
            for flag in entry[1::2]:
                self.assertRegex(text.stdout, rf"(?m)^  {flag}( |$)")
            (health,) = last.all("HEALTHCHECK")
            self.assertEqual(json.loads(health[health.index("[") :])[0], "polysketch")
            self.assertIn("org.opencontainers.image.revision", last.all("LABEL")[0])

    def test_the_cuda_image_has_what_the_cpu_image_has(self):
        def packages(path):
            install = next(run for run in stages(path)[-1].all("RUN") if "apt-get install" in run)
            return set(re.findall(r"\blib[a-z0-9.+-]+\b\+*", install.split("--no-install-recommends")[1]))

        cpu, cuda = (packages(path) for path in FILES)
        self.assertGreater(len(cpu), 2)
        self.assertLessEqual(cpu, cuda)

    def test_the_library_of_the_cuda_backend_is_where_the_server_looks(self):
        cmake = (ROOT / "kernels/cuda/CMakeLists.txt").read_text()
        self.assertIn("add_library(polysketch-cuda MODULE", cmake)
        self.assertIn("option(POLYSKETCH_CUDA ", (ROOT / "CMakeLists.txt").read_text())
        opened = (ROOT / "kernels/cuda_library.cc").read_text()
        self.assertIn('"libpolysketch-cuda.so"', opened)
        self.assertIn('folder.parent_path() / "lib"', opened)  # bin/../lib: /usr/local/lib
        self.assertIn("COPY --from=build /src/build/cpu/bin/libpolysketch-cuda.so /usr/local/lib/", FILES[1].read_text())


if __name__ == "__main__":
    unittest.main()
