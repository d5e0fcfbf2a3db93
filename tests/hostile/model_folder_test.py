"""Model folders of a stranger: nothing outside is read, no FIFO or device is waited for, and a start that is refused says why."""

import hashlib
import io
import os
import pathlib
import shutil
import subprocess
import unittest
import zipfile

import case
import http2
import messages
import serving

DEMO = serving.ROOT / "models/demo"
READ = ("config.json", "model.safetensors", "tokenizer.model", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
        "added_tokens.json", "chat_template.jinja", "SHA256SUMS")
VERIFY = {"POLYSKETCH_VERIFY": "true"}
PATIENCE = 30  # seconds in which a start must be refused


class ModelFolder(case.HostileTest):
    def setUp(self):
        super().setUp()
        self.model = self.folder / "model"
        self.secret = self.folder / "secret"
        self.secret.write_text("-----BEGIN PRIVATE KEY-----")
        self.fresh()

    def fresh(self):
        shutil.rmtree(self.model, ignore_errors=True)
        shutil.copytree(DEMO, self.model)

    def place(self, name):
        """The path of a file that is not there."""
        path = self.model / name
        path.unlink(missing_ok=True)
        return path

    def refusal(self, *flags):
        """What a start says that must be refused."""
        command = [serving.BIN / "polysketch-server", f"--model={self.model}", "--listen=127.0.0.1:0", "--http-listen=",
                   "--metrics-listen=", *flags]
        ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        self.assertEqual(ended.returncode, 2, ended.stderr[-2000:])
        self.assertNotIn("PRIVATE KEY", ended.stderr)
        return ended.stderr

    def tokenizer(self, server):
        """The files of GetTokenizer's archive: name -> bytes."""
        connection = http2.Connection(server.grpc)
        self.addCleanup(connection.close)
        call = connection.call("/vllm.grpc.engine.VllmEngine/GetTokenizer")
        call.send(b"", end=True)
        archive = b""
        while (got := call.receive(30)) is not None:
            archive += b"".join(messages.parse(got[1]).get(1, []))
        self.assertEqual(call.status, "OK")
        with zipfile.ZipFile(io.BytesIO(archive)) as files:
            return {name: files.read(name) for name in files.namelist()}

    def sums(self, *left_out):
        lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(self.model.iterdir())
                 if path.name not in ("SHA256SUMS", *left_out)]
        (self.model / "SHA256SUMS").write_text("".join(lines))

    def test_links_to_secrets(self):
        for name in READ:
            for target in (self.secret, pathlib.Path("../secret"), pathlib.Path("/proc/self/environ")):
                with self.subTest(f"{name} -> {target}"):
                    self.fresh()
                    self.place(name).symlink_to(target)
                    self.assertIn("found a link to", self.refusal())
                    self.assertIn("secret" if target.name == "secret" else "environ", self.refusal("--verify"))

    def test_what_is_no_file(self):
        for name in READ:
            with self.subTest(name):
                self.fresh()
                os.mkfifo(self.place(name))
                self.assertIn("expected a regular file", self.refusal())
                self.place(name).symlink_to("/dev/zero")
                self.assertIn("/dev/zero", self.refusal())
                self.assertIn("expected a regular file", self.refusal("--model-root=/dev"))

    def test_sparse_files(self):
        for name in ("config.json", "tokenizer.model", "SHA256SUMS"):
            with self.subTest(name):
                self.fresh()
                (self.model / "SHA256SUMS").unlink()
                with open(self.place(name), "wb") as file:
                    file.truncate(40 << 30)
                self.assertIn("found 42949672960", self.refusal())

    def test_a_sparse_template_is_no_template(self):
        (self.model / "SHA256SUMS").unlink()
        with open(self.place("chat_template.jinja"), "wb") as file:
            file.truncate(40 << 30)
        server = self.server({"model": self.model})
        self.assertIn("found 42949672960", server.log())
        self.assertLess(server.peak_mib(), 400)

    def test_links_that_are_followed(self):
        blobs = self.folder / "models--a--b/blobs"
        blobs.mkdir(parents=True)
        snapshot = self.folder / "models--a--b/snapshots/0123"
        snapshot.mkdir(parents=True)
        for number, path in enumerate(sorted(DEMO.iterdir())):
            shutil.copy(path, blobs / f"{number:040}")
            (snapshot / path.name).symlink_to(f"../../blobs/{number:040}")
        for environment in ({}, VERIFY):
            files = self.tokenizer(self.server({"model": snapshot}, environment=environment))
            self.assertEqual(files["tokenizer.json"], (DEMO / "tokenizer.json").read_bytes())
        self.place("tokenizer.json").symlink_to(DEMO / "tokenizer.json")
        self.assertEqual(self.tokenizer(self.server({"model": self.model, "model-root": serving.ROOT}))["tokenizer.json"],
                         (DEMO / "tokenizer.json").read_bytes())

    def test_what_is_not_listed_is_not_served(self):
        (self.model / "added_tokens.json").write_text("{}")
        self.sums("tokenizer_config.json")
        server = self.server({"model": self.model}, environment=VERIFY)
        self.assertEqual(set(self.tokenizer(server)), {"tokenizer.json", "added_tokens.json"})
        self.assertIn("not_listed", server.log())
        # Nor is what comes later, or takes the place of what was checked.
        (self.model / "special_tokens_map.json").write_text("{}")
        (self.model / "added_tokens.json").unlink()
        self.assertEqual(set(self.tokenizer(server)), {"tokenizer.json"})
        for change in (lambda path: path.write_text("{}"), lambda path: (path.unlink(), path.symlink_to(self.secret))):
            change(self.model / "tokenizer.json")
            connection = http2.Connection(server.grpc)
            self.addCleanup(connection.close)
            status, _, text = connection.unary("/vllm.grpc.engine.VllmEngine/GetTokenizer")
            self.assertEqual(status, "FAILED_PRECONDITION")
            self.assertNotIn(str(self.folder), text)
        self.assert_serving(server)

    def test_a_name_that_is_not_utf8(self):
        strange = os.fsencode(self.folder) + b"/m\xff"
        os.rename(self.model, strange)
        for link in (False, True):
            self.model = self.folder / "link" if link else os.fsdecode(strange)
            if link:
                self.model.symlink_to(os.fsdecode(strange))
            self.assertIn("UTF-8", self.refusal())


if __name__ == "__main__":
    unittest.main()
