"""What the tests of the Python client share: a scripted gRPC server, the real server, and the asyncio client with the
methods of the sync one, so that one test runs with both."""

import asyncio
import concurrent.futures
import contextlib
import functools
import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import time
import unittest
import urllib.request

import grpc
from google.protobuf import any_pb2, duration_pb2

import polysketch
from polysketch import _wire_pb2
from polysketch.v1 import polysketch_pb2 as pb
from polysketch.v1 import polysketch_pb2_grpc

ROOT = pathlib.Path(__file__).resolve().parents[3]
BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", ROOT / "build/cpu/bin"))
PATIENCE = 60.0  # seconds before something counts as hung; no test measures time against it
QUICK = polysketch.Retry(initial_backoff=0.01, max_backoff=0.02)


def wait_until(condition, what):
    end = time.monotonic() + PATIENCE
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"waited {PATIENCE:.0f} s for {what}")
        time.sleep(0.01)
    return value


# --- a scripted server ---


def delta(text, *tokens, choice=0):
    return pb.CompleteResponse(delta=pb.Delta(text=text, tokens=tokens, choice=choice))


def finish(reason=pb.FINISH_REASON_LENGTH, **fields):
    return pb.CompleteResponse(finish=pb.Finish(reason=reason, **fields))


def migrated(token):
    return finish(pb.FINISH_REASON_MIGRATED, resume_token=token)


class Refuse(Exception):
    """Ends a call of the scripted server with a status. retry_info, in seconds, is sent as the server sends it."""

    def __init__(self, code, message="refused", retry_info=None, metadata=()):
        super().__init__(code)
        self.code, self.message, self.metadata = code, message, list(metadata)
        if retry_info is not None:
            info = _wire_pb2.RetryInfo(
                retry_delay=duration_pb2.Duration(seconds=int(retry_info), nanos=round(retry_info % 1 * 1e9)))
            packed = any_pb2.Any(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info.SerializeToString())
            details = _wire_pb2.Status(code=code.value[0], message=message, details=[packed])
            self.metadata.append(("grpc-status-details-bin", details.SerializeToString()))


UNAVAILABLE = Refuse(grpc.StatusCode.UNAVAILABLE)


class Call:
    """A call that the scripted server received."""

    def __init__(self, method, request, context):
        self.method, self.request, self.context = method, request, context
        self.metadata = dict(context.invocation_metadata())
        self.time = time.monotonic()


class FakeServer(polysketch_pb2_grpc.PolySketchServicer):
    """Answers each call with the next item of `script`: a list of responses and Refuse errors, or a function of the Call
    that makes one. `calls` records them."""

    def __init__(self, script=(), credentials=None):
        self.script, self.calls = list(script), []
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(8))
        polysketch_pb2_grpc.add_PolySketchServicer_to_server(self, self._server)
        port = (self._server.add_insecure_port("127.0.0.1:0") if credentials is None
                else self._server.add_secure_port("127.0.0.1:0", credentials))
        self.target = f"127.0.0.1:{port}"
        self._server.start()

    def stop(self):
        self._server.stop(0).wait()

    def _answer(self, method, request, context):
        if not hasattr(request, "DESCRIPTOR"):
            request = list(request)
        call = Call(method, request, context)
        self.calls.append(call)
        responses = self.script.pop(0)
        for response in responses(call) if callable(responses) else responses:
            if isinstance(response, Refuse):
                context.set_trailing_metadata(response.metadata)
                context.abort(response.code, response.message)
            yield response

    def _unary(self, method, request, context):
        return next(self._answer(method, request, context))


def _add_methods():
    for method in pb.DESCRIPTOR.services_by_name["PolySketch"].methods:
        handler = FakeServer._answer if method.server_streaming else FakeServer._unary
        setattr(FakeServer, method.name,
                lambda self, request, context, name=method.name, run=handler: run(self, name, request, context))


_add_methods()


# --- both clients ---


class Blocking:
    """An object of the asyncio client whose coroutines and iterators block."""

    def __init__(self, runner, target):
        self._runner, self._target = runner, target

    def __getattr__(self, name):
        value = getattr(self._target, name)
        return functools.partial(self._call, value) if callable(value) else value

    def _call(self, function, *arguments, **options):
        async def run():
            value = function(*arguments, **options)
            return await value if inspect.isawaitable(value) else value

        return self._wrap(self._runner.run(run()))

    def _wrap(self, value):
        if isinstance(value, list):
            return [self._wrap(one) for one in value]
        ours = isinstance(value, (polysketch.AsyncCompletionStream, polysketch.AsyncSession, polysketch.AsyncChatStream,
                                  polysketch.AsyncConversation))
        return Blocking(self._runner, value) if ours else value

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self._call(self._target.__anext__)
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self):
        self._call(self._target.__aenter__)
        return self

    def __exit__(self, *error):
        self._call(self._target.__aexit__, *error)


class ClientTest(unittest.TestCase):
    """Tests with a client of either kind. Children and servers do not outlive the test."""

    kind = polysketch.Client

    def client(self, *arguments, **options):
        options = {"retry": QUICK, "timeout": PATIENCE} | options
        if self.kind is polysketch.Client:
            client = self.kind(*arguments, **options)
        else:
            runner = asyncio.Runner()
            self.addCleanup(runner.close)

            async def make():
                return self.kind(*arguments, **options)

            client = Blocking(runner, runner.run(make()))
        self.addCleanup(client.close)
        return client

    def fake(self, *script, **options):
        server = FakeServer(script, **options)
        self.addCleanup(server.stop)
        return server

    def raises(self, error, function, *arguments, **options):
        with self.assertRaises(error) as caught:
            function(*arguments, **options)
        return caught.exception

    def start_server(self, *flags):
        server = Server(*flags)
        self.addCleanup(server.stop)
        return server


def for_both(case):
    """Adds the test case again, with the asyncio client, to the module of the class."""
    module = inspect.getmodule(case)
    name = case.__name__ + "Async"
    setattr(module, name, type(name, (case,), {"kind": polysketch.AsyncClient, "__module__": module.__name__}))
    return case


# --- the real server ---


class Server:
    """polysketch-server with models/demo on free ports."""

    def __init__(self, *flags):
        self._log = tempfile.TemporaryFile()
        command = [BIN / "polysketch-server", f"--model={ROOT / 'models/demo'}", "--listen=127.0.0.1:0",
                   "--metrics-listen=127.0.0.1:0", "--http-listen=", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self._log, text=True)
        line = self.process.stdout.readline()
        if not line:
            raise AssertionError(f"no ready line:\n{self.log()}")
        ready = json.loads(line)
        self.target, self._metrics, self.http = ready["listen"], ready["metrics"], ready["http"]

    def log(self):
        self._log.seek(0)
        return self._log.read().decode()

    def drain(self):
        self.process.send_signal(signal.SIGTERM)

    def stop(self):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self._log.close()

    def metric(self, name):
        """The value of a series of /metrics; 0 for one that does not exist yet."""
        with urllib.request.urlopen(f"http://{self._metrics}/metrics", timeout=PATIENCE) as answer:
            match = re.search(rf"^{re.escape(name)} (\S+)$", answer.read().decode(), re.MULTILINE)
        return float(match[1]) if match else 0.0

    def command(self, *arguments):
        """The JSON object that a command of the command line client prints."""
        command = [BIN / "polysketch", "--server", self.target, *map(str, arguments), "--json"]
        return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


@contextlib.contextmanager
def environment(**variables):
    """The environment of this process with only these variables of the client."""
    names = ("SERVER", "API_KEY", "TLS_CA", "CERT", "KEY")
    saved = {name: os.environ.pop(f"POLYSKETCH_{name}", None) for name in names}
    os.environ.update({f"POLYSKETCH_{name}": value for name, value in variables.items()})
    try:
        yield
    finally:
        for name, value in saved.items():
            os.environ.pop(f"POLYSKETCH_{name}", None)
            if value is not None:
                os.environ[f"POLYSKETCH_{name}"] = value
