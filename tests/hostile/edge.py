"""HAProxy with deploy/haproxy before a server, and the certificate of tests with TLS."""

import itertools
import os
import pathlib
import socket
import ssl
import subprocess

import http2
import serving

CONFIGURATION = serving.ROOT / "deploy/haproxy/haproxy.cfg"
PROGRAM = serving.ROOT / ".deps/bin/haproxy"  # scripts/setup hostile brings it


class Certificate:
    def __init__(self, folder):
        self.key, self.chain, self.both = folder / "key.pem", folder / "chain.pem", folder / "both.pem"

    def client(self):
        """The TLS of a client that trusts this certificate."""
        context = ssl.create_default_context(cafile=self.chain)
        context.set_alpn_protocols(["h2"])
        return context


def make_certificate(folder):
    made = Certificate(folder)
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
                    "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", made.key, "-out", made.chain], check=True, capture_output=True)
    made.both.write_bytes(made.chain.read_bytes() + made.key.read_bytes())
    return made


_sockets = itertools.count(1)


def server_flags(folder):
    """The flags of the server that the configuration names."""
    return {"listen": f"unix:{folder}/grpc-{next(_sockets)}.sock", "max-connections": 1100, "max-calls": 1100}


def free_address():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{one.getsockname()[1]}"


class HAProxy:
    """Started with the file of deploy/, its addresses replaced, and ready."""

    def __init__(self, folder, server, certificate, configuration=CONFIGURATION):
        self.address, self.metrics = free_address(), free_address()
        listen = server.ready["listen"]
        environment = {**os.environ, "EDGE_BIND": self.address, "EDGE_CERT": str(certificate.both), "EDGE_METRICS": self.metrics,
                       "EDGE_GRPC": "unix@" + listen.removeprefix("unix:") if listen.startswith("unix:") else listen,
                       "EDGE_HTTP": server.ready["http"]}
        self._log = open(folder / "haproxy.log", "ab")
        self._process = subprocess.Popen([PROGRAM, "-db", "-f", configuration], env=environment, stdout=self._log, stderr=self._log)
        self.log_path = folder / "haproxy.log"

        def ready():
            assert self.alive(), self.log_path.read_text()[-2000:]
            try:
                address = serving.address_of(self.address)
                return serving.completion(address, max_tokens=1, tls=certificate.client())[1] == "OK"
            except (OSError, http2.Closed):
                return False

        serving.wait_until(ready, "HAProxy", 20)

    def alive(self):
        return self._process.poll() is None

    def resident_mib(self):
        text = pathlib.Path(f"/proc/{self._process.pid}/status").read_text()
        return float(text.split("VmHWM:")[1].split()[0]) / 1024

    def stop(self):
        self._process.kill()
        self._process.wait()
        self._log.close()
