"""Addresses, credentials, environment variables and metadata."""

import hashlib
import json
import pathlib
import subprocess
import tempfile
import unittest

import grpc
from support import ClientTest, delta, environment, finish, for_both, migrated

import polysketch
from polysketch._config import parse_address, parse_addresses
from polysketch.v1 import polysketch_pb2 as pb

MODEL = [pb.GetModelResponse(name="fake")]


class Addresses(unittest.TestCase):
    def test_forms(self):
        for text, target, secure, resolve in [
            ("localhost", "localhost:50051", None, False),
            ("7000", "127.0.0.1:7000", None, False),
            ("10.0.0.1:9", "10.0.0.1:9", None, False),
            ("[::1]:9", "[::1]:9", None, False),
            ("::1", "[::1]:50051", None, False),
            ("[::1]", "[::1]:50051", None, False),
            ("http://a.example:9", "a.example:9", False, False),
            ("http://a.example/", "a.example:50051", False, False),
            ("https://a.example", "a.example:443", True, False),
            ("https://a.example:9", "a.example:9", True, False),
            ("dns:///replicas:9", "replicas:9", None, True),
            ("unix:/run/server", "unix:/run/server", None, False),
        ]:
            with self.subTest(text):
                address = parse_address(text)
                self.assertEqual((address.target, address.secure, address.resolve), (target, secure, resolve))

    def test_several(self):
        for value in ("a:1, b:2", ["a:1", "b:2"]):
            self.assertEqual([address.target for address in parse_addresses(value)], ["a:1", "b:2"])

    def test_errors_name_what_was_found(self):
        for value in ("ftp://a:1", "a:1/path", "a:1,,b:2"):
            with self.subTest(value), self.assertRaisesRegex(ValueError, "target: expected HOST:PORT, .*found '"):
                parse_addresses(value)
        with self.assertRaisesRegex(ValueError, "at least one address"):
            parse_addresses([])

    def test_the_default(self):
        with environment():
            self.assertEqual(parse_addresses(None)[0].target, "127.0.0.1:50051")
        with environment(SERVER="a:1,b:2"):
            self.assertEqual([address.target for address in parse_addresses(None)], ["a:1", "b:2"])


@for_both
class Metadata(ClientTest):
    def test_key_tenant_and_session(self):
        server = self.fake(MODEL, [pb.Session(session="s", tokens=3)], [pb.ForkSessionResponse(sessions=[pb.Session()])])
        with environment():
            client = self.client(server.target, api_key="secret", tenant="team", metadata=[("x-extra", "1")])
        client.info()
        session = client.session()
        session.fork()
        model, _, fork = (call.metadata for call in server.calls)
        self.assertEqual(model["authorization"], "Bearer secret")
        self.assertEqual((model["x-tenant-id"], model["x-extra"]), ("team", "1"))
        self.assertNotIn("x-session-id", model)
        self.assertEqual(fork["x-session-id"], "s")
        self.assertTrue(model["user-agent"].startswith(f"polysketch-python/{polysketch.__version__} "), model)

    def test_the_environment(self):
        server = self.fake(MODEL, MODEL, MODEL)
        with environment(SERVER=server.target, API_KEY="from the environment"):
            for options in ({}, {"api_key": "argument"}, {"api_key": ""}):
                self.assertEqual(self.client(**options).info().name, "fake")
        self.assertEqual([call.metadata.get("authorization") for call in server.calls],
                         ["Bearer from the environment", "Bearer argument", None])

    def test_dns_names_are_resolved(self):
        server = self.fake([delta("a", 1), migrated("t")], [delta("b", 2), finish()])
        port = server.target.partition(":")[2]
        self.assertEqual(self.client(f"dns:///localhost:{port}").complete("x").result().text, "ab")
        self.assertRegex(server.calls[0].context.peer(), r"^ipv[46]:")
        self.assertRegex(str(self.raises(polysketch.UnavailableError, self.client("dns:///no.invalid:1").info)),
                         "no.invalid: the host name does not resolve")


def openssl(folder, *arguments):
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)


@for_both
class Tls(ClientTest):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.dir = pathlib.Path(folder.name)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl(cls.dir, "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
        (cls.dir / "names").write_text("subjectAltName=DNS:localhost\n")
        for name in ("server", "client"):
            openssl(cls.dir, "req", *key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}")
            openssl(cls.dir, "x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                    "-out", f"{name}.pem", "-days", "1", "-extfile", "names")

    def secure(self, *script, mutual=False):
        ca, key, cert = ((self.dir / name).read_bytes() for name in ("ca.pem", "server.key", "server.pem"))
        credentials = grpc.ssl_server_credentials([(key, cert)], ca if mutual else None, mutual)
        return self.fake(*script, credentials=credentials)

    def test_the_authority_selects_tls(self):
        server = self.secure(MODEL, MODEL, MODEL)
        port = server.target.partition(":")[2]
        target = f"localhost:{port}"
        ca = self.dir / "ca.pem"
        with environment():
            self.assertEqual(self.client(target, tls_ca=ca).info().name, "fake")
            # The name in the certificate is that of the address that was given, not of the resolved one.
            self.assertEqual(self.client(f"dns:///localhost:{port}", tls_ca=ca).info().name, "fake")
        with environment(TLS_CA=str(ca)):
            self.assertEqual(self.client(f"https://{target}").info().name, "fake")
            plain = self.client(f"http://{target}", retry=None)
        self.assertIsInstance(self.raises(polysketch.RpcError, plain.info), polysketch.UnavailableError)
        with environment():
            unknown = self.client(f"https://{target}", retry=None)
        self.assertIn("CERTIFICATE_VERIFY_FAILED", str(self.raises(polysketch.UnavailableError, unknown.info)))

    def test_a_client_certificate(self):
        server = self.secure(MODEL, mutual=True)
        files = {"tls_ca": self.dir / "ca.pem", "cert": self.dir / "client.pem", "key": self.dir / "client.key"}
        target = server.target.replace("127.0.0.1", "localhost")
        self.raises(polysketch.UnavailableError, self.client(target, tls_ca=files["tls_ca"], retry=None).info)
        self.assertEqual(self.client(target, **files).info().name, "fake")

    def test_the_real_server(self):
        keys = self.dir / "keys.jsonl"
        keys.write_text(json.dumps({"name": "app", "sha256": hashlib.sha256(b"secret").hexdigest(), "tenant": "app",
                                    "requests_per_minute": 3}))
        server = self.start_server(f"--tls-cert={self.dir / 'server.pem'}", f"--tls-key={self.dir / 'server.key'}",
                                   f"--tls-client-ca={self.dir / 'ca.pem'}", f"--api-keys={keys}",
                                   "--http-listen=127.0.0.1:0")
        files = {"tls_ca": self.dir / "ca.pem", "cert": self.dir / "client.pem", "key": self.dir / "client.key"}
        target = server.target.replace("127.0.0.1", "localhost")
        with environment():
            client = self.client(target, api_key="secret", tenant="ignored", retry=None, **files)
            self.assertEqual(client.info().name, "demo")
            self.assertEqual(len(client.complete("It was", max_tokens=3).result().tokens), 3)
            self.assertEqual(client.info().name, "demo")
            self.assertIn("3 requests a minute", str(self.raises(polysketch.ResourceExhaustedError, client.info)))
            for key in (None, "wrong"):
                stranger = self.client(target, api_key=key, retry=None, **files)
                self.raises(polysketch.UnauthenticatedError, stranger.info)
            without = self.client(target, api_key="secret", retry=None, tls_ca=files["tls_ca"])
            self.raises(polysketch.UnavailableError, without.info)
            http = server.http.replace("127.0.0.1", "localhost")
            client = self.client(target, http=http, api_key="secret", retry=None, **files)
            # Let in, with the key's limit reached; another key is not.
            self.assertIn("a minute", str(self.raises(polysketch.ResourceExhaustedError, lambda: client.chat("Hi").result())))
            stranger = self.client(target, http=http, api_key="wrong", retry=None, **files)
            self.raises(polysketch.UnauthenticatedError, lambda: stranger.chat("Hi").result())
            without = self.client(target, http=http, api_key="secret", retry=None, tls_ca=files["tls_ca"])
            self.raises(polysketch.UnavailableError, lambda: without.chat("Hi").result())

    def test_files(self):
        with environment(), self.assertRaisesRegex(ValueError, "cert and key: expected both or neither, found cert only"):
            polysketch.Client(cert=self.dir / "client.pem")
        with environment(), self.assertRaisesRegex(ValueError, "tls_ca: cannot read .*/none.pem: No such file"):
            polysketch.Client(tls_ca=self.dir / "none.pem")


if __name__ == "__main__":
    unittest.main()
