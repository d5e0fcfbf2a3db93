"""The archive of an image, made of a small root: deterministic, consistent, and with what the Dockerfile says. deploy/docker/test-archive runs
the one of a release."""

import datetime
import io
import json
import os
import pathlib
import stat
import subprocess
import sys
import tarfile
import unittest
import zipfile

from support import DEPLOY, DeployTest

sys.path.insert(0, str(DEPLOY / "docker"))
import image  # noqa: E402

CREATED = datetime.datetime(2026, 1, 2, tzinfo=datetime.timezone.utc)
STATUS = """Package: thing
Status: install ok installed
Maintainer: someone
Description: a thing
Architecture: amd64
Version: 1-2+b1
Source: origin (1-2)

Package: polysketch-server
Status: install ok installed
Maintainer: someone
Description: ours
Architecture: amd64
Version: 1.2
"""
KEPT = {"var/lib/dpkg/status": STATUS.encode(), "bin": "usr/bin", "usr/bin/program": b"program",
        "usr/share/doc/thing/copyright": b"free"}
LEFT_OUT = {"etc/hostname": b"builder", "etc/passwd-": b"", "var/cache/ldconfig/aux-cache": b"1", "var/log/dpkg.log": b"now",
            "usr/share/doc/thing/changelog.gz": b"", "usr/share/man/man1/program.1.gz": b""}


class Archive(DeployTest):
    def root(self, name, files, seconds, user):
        """A root as a builder leaves it, by that user, at that time after the image's."""
        made = self.dir / f"{name}.tar"
        with tarfile.open(made, "w") as root:
            def add(path, kind, content=b"", linkname=""):
                member = tarfile.TarInfo(f"./{path}")
                member.type, member.size, member.linkname, member.mode, member.uname = kind, len(content), linkname, 0o755, user
                member.mtime = CREATED.timestamp() + seconds
                root.addfile(member, io.BytesIO(content))

            for folder in sorted({str(parent) for path in files for parent in list(pathlib.PurePosixPath(path).parents)[:-1]}):
                add(folder, tarfile.DIRTYPE)
            for path, content in files.items():
                if isinstance(content, str):
                    add(path, tarfile.SYMTYPE, linkname=content)
                else:
                    add(path, tarfile.REGTYPE, content)
            add("usr/bin/alias", tarfile.LNKTYPE, linkname="./usr/bin/program")
        return made

    def write(self, name, root):
        out = self.dir / name
        image.write(root, image.configuration(DEPLOY / "docker/Dockerfile", REVISION="abc"), "polysketch-server:1.2", CREATED, out)
        return out

    def test_archive(self):
        files = KEPT | LEFT_OUT
        first = self.write("first.tar", self.root("first-root", files, 10, "root"))
        second = self.write("second.tar", self.root("second-root", dict(reversed(files.items())), 20, "builder"))
        with self.subTest("another time and order make the same bytes"):
            self.assertEqual(first.read_bytes(), second.read_bytes())
        with self.subTest("it unpacks to the files of a root, without what one machine or one run left"):
            folder = self.dir / "unpacked"
            folder.mkdir()
            config = image.read(first, folder)
            found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_symlink() or path.is_file()}
            self.assertEqual(found, {*KEPT, "usr/bin/alias"})
            program = (folder / "usr/bin/program").stat()
            self.assertEqual((program.st_nlink, stat.S_IMODE(program.st_mode), program.st_mtime), (2, 0o755, CREATED.timestamp()))
            self.assertEqual(os.readlink(folder / "bin"), "usr/bin")
        with self.subTest("it starts what the Dockerfile says"):
            started = config["config"]
            self.assertEqual(started["User"], "10001:10001")
            self.assertEqual(started["Healthcheck"]["Test"][:2], ["CMD", "polysketch"])
            self.assertEqual((started["Healthcheck"]["StartPeriod"], started["StopSignal"]), (60 * 10**9, "SIGTERM"))
            self.assertEqual((started["Entrypoint"][0], started["Cmd"][0]), ("polysketch-server", "--model"))
            self.assertEqual(started["Labels"]["org.opencontainers.image.revision"], "abc")
        self.check_that_changes_are_found(first)
        self.check_what_it_consists_of(first)

    def check_that_changes_are_found(self, archive):
        with tarfile.open(archive) as opened:
            files = {member.name: opened.extractfile(member).read() for member in opened}
        (loaded,) = json.loads(files["manifest.json"])
        other = json.dumps([loaded | {"Layers": [loaded["Config"]]}]).encode()
        layer = files[loaded["Layers"][0]]
        for what, change in (("a layer", {loaded["Layers"][0]: layer[:-1] + bytes([layer[-1] ^ 1])}), ("a manifest", {"manifest.json": other}),
                             ("a file more", {"blobs/sha256/more": b""})):
            with self.subTest(what):
                changed = self.dir / "changed.tar"
                with tarfile.open(changed, "w") as target:
                    for path, content in (files | change).items():
                        member = tarfile.TarInfo(path)
                        member.size = len(content)
                        target.addfile(member, io.BytesIO(content))
                self.assertRaises(SystemExit, image.read, changed, self.dir)

    def check_what_it_consists_of(self, archive):
        with zipfile.ZipFile(self.dir / "server.whl", "w") as wheel:
            wheel.writestr("polysketch_server.libs/libz-01234567.so.1", b"")
        document = json.loads(subprocess.run([DEPLOY / "make-sbom", wheel.filename, archive], check=True, stdout=subprocess.PIPE).stdout)
        uses = {part["purl"]: [value["value"] for value in part["properties"] if value["name"] == "polysketch:use"] for part in document["components"]}
        self.assertEqual(len(uses), len(document["components"]))
        self.assertEqual([purl for purl, use in uses.items() if "image" in use], ["pkg:deb/debian/thing@1-2%2Bb1?arch=amd64&distro=debian-12"])
        # One component with the uses of both.
        self.assertIn(["bundled", "system"], uses.values())


if __name__ == "__main__":
    unittest.main()
