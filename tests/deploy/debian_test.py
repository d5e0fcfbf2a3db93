"""The Debian package: made of this build, unpacked, and its server and client run with the configuration that it installs.
deploy/debian/test-package installs and removes it in a bare Debian root."""

import json
import re
import signal
import subprocess
import unittest

from support import BIN, DEPLOY, ROOT, DeployTest

UNIT = (DEPLOY / "debian/polysketch-server.service").read_text()


def default_of(flag):
    """The default of a flag of the server, in its --help."""
    help_text = subprocess.run([BIN / "polysketch-server", "--help"], check=True, capture_output=True, text=True).stdout
    return re.search(rf"--{flag} TIME.*?\[(\d+)s\]", help_text, re.DOTALL)[1]


class Unit(unittest.TestCase):
    def test_systemd_waits_for_the_whole_drain(self):
        stop = int(re.search(r"^TimeoutStopSec=(\d+)s$", UNIT, re.MULTILINE)[1])
        self.assertGreater(stop, int(default_of("drain-timeout")) + 2)

    def test_the_service_starts_the_installed_program_with_the_installed_configuration(self):
        command = re.search(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)[1]
        self.assertEqual(command, "/usr/bin/polysketch-server --config /etc/polysketch/server.json")


class Package(DeployTest):
    def setUp(self):
        super().setUp()
        build = BIN.parent
        subprocess.run(["cpack", "--config", build / "CPackConfig.cmake", "-B", self.dir / "out", "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip"], check=True,
                       capture_output=True, cwd=build)
        (self.package,) = (self.dir / "out").glob("*.deb")
        subprocess.run(["dpkg-deb", "--extract", self.package, self.dir / "root"], check=True)

    def field(self, name):
        return subprocess.run(["dpkg-deb", "--field", self.package, name], check=True, capture_output=True, text=True).stdout.strip()

    def test_package(self):
        with self.subTest("its name has the version of CMakeLists.txt"):
            version = re.search(r"project\(polysketch VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
            self.assertEqual(self.package.name, f"polysketch-server_{version}_amd64.deb")
        with self.subTest("it depends on the libraries that the server loads"):
            depends = self.field("Depends")
            for library in ("libc6", "libgrpc++1.51", "libprotobuf32", "libssl3"):
                self.assertRegex(depends, rf"(^|, ){re.escape(library)}\b")
        with self.subTest("the configuration is one that an upgrade keeps"):
            conffiles = subprocess.run(["dpkg-deb", "--info", self.package, "conffiles"], check=True, capture_output=True, text=True)
            self.assertEqual(conffiles.stdout.split(), ["/etc/polysketch/server.json"])
        with self.subTest("files belong to root, and others may read them"):
            listing = subprocess.run(["dpkg-deb", "--contents", self.package], check=True, capture_output=True, text=True).stdout
            for line in listing.splitlines():
                self.assertRegex(line, r"^(-rw-r--r--|[-d]rwxr-xr-x) root/root ")
        self.check_that_it_serves()

    def check_that_it_serves(self):
        root = self.dir / "root"
        config = json.loads((root / "etc/polysketch/server.json").read_text())
        model = root / config["model"].lstrip("/")
        config |= {"model": str(model), "state-store": f"dir:{self.dir}/states", "listen": "127.0.0.1:0",
                   "http-listen": "127.0.0.1:0", "metrics-listen": "127.0.0.1:0"}
        path = self.dir / "server.json"
        path.write_text(json.dumps(config))
        server = self.start("packed", [root / "usr/bin/polysketch-server", "--config", path], stdout=subprocess.PIPE)
        self.addCleanup(server.stdout.close)
        ready = json.loads(server.stdout.readline())
        client = [root / "usr/bin/polysketch", "--server", ready["listen"], "complete", "--prompt", "It was", "--max-tokens", "8"]
        self.assertTrue(subprocess.run(client, check=True, capture_output=True, text=True).stdout.strip())
        server.send_signal(signal.SIGTERM)
        self.assertEqual(server.wait(60), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
