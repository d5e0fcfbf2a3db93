"""The wheel of the server: made of this build twice, installed into an environment of its own, served, asked and removed; the package
for Debian 13 made of it; what deploy/make-sbom says of it; and the signature of its checksums. `scripts/release test` installs both in
bare Debian roots."""

import hashlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest
import urllib.request
import venv
import zipfile

import cyclonedx.schema
import jsonschema
import referencing
import referencing.jsonschema

from support import BIN, DEPLOY, ROOT, DeployTest

VERSION = re.search(r"project\(polysketch VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]


def run(*command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def check_against_schema(document):
    """By the schema of CycloneDX, which its Python library carries with what it refers to."""
    folder = pathlib.Path(cyclonedx.schema.__file__).parent / "_res"
    names = [f"{name}.SNAPSHOT.schema.json" for name in ("bom-1.6", "spdx", "jsf-0.82", "cryptography-defs")]
    # They refer to each other by the names of the files.
    resources = [(name, referencing.jsonschema.DRAFT7.create_resource(json.loads((folder / name).read_text()) | {"$id": name})) for name in names]
    jsonschema.Draft7Validator(resources[0][1].contents, registry=referencing.Registry().with_resources(resources)).validate(document)


class Wheel(DeployTest):
    def make(self, name, mask):
        """Of the build, in a folder of this name, by a process with this umask. Compression takes most of the time."""
        folder = self.dir / name
        run(sys.executable, "-B", DEPLOY / "wheel/make-wheel", BIN.parent, folder, "--compression", "1", stderr=subprocess.PIPE, umask=mask)
        (wheel,) = folder.iterdir()
        return wheel

    def test_wheel(self):
        wheel = self.make("first", 0o022)
        with self.subTest("auditwheel finds nothing that it must bring"):
            self.assertRegex(wheel.name, rf"^polysketch_server-{VERSION}-py3-none-manylinux_2_\d+_x86_64\.whl$")
            shown = run(sys.executable, "-m", "auditwheel", "show", wheel, env=os.environ | {"AUDITWHEEL_PLAT": "auto"})
            self.assertIn(f'"{re.search("manylinux.*64", wheel.name)[0]}"', shown)
        with self.subTest("the same build makes the same bytes"):
            again = self.make("second", 0o077)
            self.assertEqual(hashlib.sha256(again.read_bytes()).digest(), hashlib.sha256(wheel.read_bytes()).digest())
        self.check_that_it_serves(wheel)
        self.check_package_for_debian_13(wheel)
        self.check_what_it_consists_of(wheel)
        self.check_signatures(wheel.parent)

    def check_that_it_serves(self, wheel):
        environment = self.dir / "environment"
        venv.create(environment, with_pip=True)
        pip = [environment / "bin/pip", "--disable-pip-version-check"]
        before = set(environment.rglob("*"))
        run(*pip, "install", "--quiet", "--no-index", wheel)
        programs = environment / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages/polysketch_server/bin"
        self.check_that_it_loads_what_it_brings(programs / "polysketch-server", environment)

        # Without arguments it serves the model of the wheel.
        addresses = {f"POLYSKETCH_{name}LISTEN": "127.0.0.1:0" for name in ("", "HTTP_", "METRICS_")}
        server = self.start("server", [environment / "bin/polysketch-server"], stdout=subprocess.PIPE, env=os.environ | addresses)
        self.addCleanup(server.stdout.close)
        ready = json.loads(server.stdout.readline())
        body = {"prompt": "It was", "max_tokens": 8, "stream": True}
        request = urllib.request.Request(f"http://{ready['http']}/v1/completions", json.dumps(body).encode())
        with urllib.request.urlopen(request) as answer:
            events = answer.read().decode()
        self.assertIn("data: [DONE]", events)
        # By the grammar host of the wheel.
        client = [environment / "bin/polysketch", "--server", ready["listen"], "complete", "It was", "--choice", "one of one"]
        self.assertEqual(run(*client).strip(), "one of one")
        self.assertIn(VERSION, run(environment / "bin/polysketch-loadgen", "--version"))
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(60), 0)

        run(*pip, "uninstall", "--quiet", "--yes", "polysketch-server")
        self.assertEqual({path for path in set(environment.rglob("*")) - before if "__pycache__" not in path.parts}, set())

    def check_that_it_loads_what_it_brings(self, program, folder):
        """Its libraries, below the folder, are found without help, and those of the system are not needed."""
        loaded = run("ldd", program)
        self.assertRegex(loaded, r"libgrpc\+\+-\w+\.so\S* => " + re.escape(str(folder)))
        outside = {name for name, path in re.findall(r"(\S+) => (/\S+)", loaded) if not path.startswith(str(folder))}
        self.assertLessEqual(outside, {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libz.so.1", "libresolv.so.2"})

    def check_package_for_debian_13(self, wheel):
        packages = self.dir / "packages"
        run("cpack", "--config", BIN.parent / "CPackConfig.cmake", "-B", packages, "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip", cwd=BIN.parent)
        (package,) = packages.glob("*.deb")
        made = []
        for name in ("once", "twice"):
            (self.dir / name).mkdir()
            run(DEPLOY / "debian/bundle", package, wheel, self.dir / name, env=os.environ | {"DPKG_DEB_COMPRESSOR_TYPE": "none"})
            made += (self.dir / name).iterdir()
        self.assertEqual({path.name for path in made}, {f"polysketch-server_{VERSION}+deb13_amd64.deb"})
        self.assertEqual(made[0].read_bytes(), made[1].read_bytes())
        depends = re.split(r" \([^)]*\)|, ", run("dpkg-deb", "--field", made[0], "Depends").strip())
        self.assertEqual({name for name in depends if name}, {"libc6", "libgcc-s1", "libstdc++6", "zlib1g"})
        root = self.dir / "root"
        run("dpkg-deb", "--extract", made[0], root)
        # ldd takes the place of a link for that of the program.
        self.check_that_it_loads_what_it_brings((root / "usr/bin/polysketch-server").resolve(), root.resolve())
        self.assertIn(VERSION, run(root / "usr/bin/polysketch", "--version"))

    def check_what_it_consists_of(self, wheel):
        document = json.loads(run(DEPLOY / "make-sbom", wheel))
        check_against_schema(document)
        named = {part["name"]: part for part in document["components"]}
        with zipfile.ZipFile(wheel) as archive:
            libraries = [name.split("/")[1] for name in archive.namelist() if re.match(r"polysketch_server\.libs/.", name)]
        self.assertGreater(len(libraries), 20)
        # A library's file is the package's, but for the hash in its name.
        files = set()
        for part in named.values():
            if {"name": "polysketch:use", "value": "bundled"} in part["properties"]:
                files |= {pathlib.Path(line).name for line in run("dpkg-query", "--listfiles", part["name"]).splitlines()}
        for library in libraries:
            with self.subTest(library):
                self.assertIn(re.sub(r"-[0-9a-f]{8}\.", ".", library, count=1), files)
        for name in ("libgrpc++1.51", "libssl3", "libc6", "nlohmann-json3-dev", "sentencepiece", "xgrammar", "grpcio"):
            self.assertIn(name, named)

    def check_signatures(self, folder):
        environment = os.environ | {"GNUPGHOME": str(self.dir / "keys")}
        (self.dir / "keys").mkdir(mode=0o700)
        self.addCleanup(run, "gpgconf", "--kill", "all", env=environment)
        key = "release@polysketch.invalid"
        run("gpg", "--batch", "--quiet", "--passphrase", "", "--quick-generate-key", key, "ed25519", "sign", "1d", env=environment)
        sums = folder / "SHA256SUMS"
        sums.write_text(run("sha256sum", *(path.name for path in folder.iterdir()), cwd=folder))
        sign = [ROOT / "scripts/release", "sign", key, folder]
        verify = ["gpg", "--batch", "--quiet", "--verify", folder / "SHA256SUMS.asc", sums]
        quiet = {"env": environment, "stderr": subprocess.PIPE}
        run(*sign, **quiet)
        run(*verify, **quiet)
        with self.subTest("a file that changed, one without a checksum, other checksums"):
            (folder / "more").write_text("more")
            self.assertRaises(subprocess.CalledProcessError, run, *sign, **quiet)
            (folder / "more").unlink()
            text = sums.read_text()
            sums.write_text(text.replace(text[0], "0" if text[0] != "0" else "1", 1))
            self.assertRaises(subprocess.CalledProcessError, run, *sign, **quiet)
            self.assertRaises(subprocess.CalledProcessError, run, *verify, **quiet)


if __name__ == "__main__":
    unittest.main(verbosity=2)
