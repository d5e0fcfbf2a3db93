"""A server of a model folder, and what scripts ask it by the command line client, over gRPC."""

import contextlib
import json
import pathlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

_CONCURRENCY = 8


@contextlib.contextmanager
def serving(binaries: pathlib.Path, model: pathlib.Path, folder: pathlib.Path, threads: int) -> Iterator[str]:
    """Yields the address of a server of `model` in float32. Its socket and its log are in `folder`."""
    address, log = f"unix:{folder}/server.sock", folder / "server.log"
    options = ["--listen", address, "--http-listen", "", "--metrics-listen", "", "--device", "cpu", "--weights", "f32"]
    with log.open("w") as output:
        command = [binaries / "polysketch-server", "--model", model, *options, "--threads", str(threads)]
        server = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        while f'"{address}"' not in log.read_text():
            if server.poll() is not None:
                sys.exit(f"the server ended:\n{log.read_text()}")
            time.sleep(0.1)
        yield address
    finally:
        server.terminate()
        server.wait()


class Client:
    """Calls of one server. Files of a call are in `folder`."""

    def __init__(self, binaries: pathlib.Path, address: str, folder: pathlib.Path):
        self._command, self._folder = [binaries / "polysketch", "--server", address], folder

    def run(self, *options) -> str:
        """Returns what the client prints for these options."""
        command = [*self._command, *options]
        return subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, text=True).stdout

    def score(self, tokens: Sequence[int], *options) -> dict:
        """Returns the result of `polysketch score --json` for these tokens."""
        return json.loads(self.run("score", "--json", "--prompt-tokens", self.token_file(tokens), *options))

    def complete(self, prompts: Sequence[Sequence[int]], counts: Sequence[int]) -> list[list[int]]:
        """Returns for each prompt the first `count` tokens of its greedy completion."""
        requests = self._folder / "requests.jsonl"
        bodies = [_greedy(prompt, count) for prompt, count in zip(prompts, counts, strict=True)]
        requests.write_text("".join(json.dumps({"custom_id": str(i), "body": body}) + "\n" for i, body in enumerate(bodies)))
        printed = self.run("batch", "--in-order", "--input", requests, "--concurrency", _CONCURRENCY)
        return [json.loads(line)["response"]["tokens"] for line in printed.splitlines()]

    def token_file(self, tokens: Sequence[int]) -> pathlib.Path:
        path = self._folder / "tokens.txt"
        path.write_text(" ".join(map(str, tokens)))
        return path


def _greedy(prompt: Sequence[int], count: int) -> dict:
    return {
        "prompt": {"tokens": {"ids": [int(token) for token in prompt]}},
        "max_tokens": count,
        "ignore_eos": True,
        "sampling": {"temperature": 0},
    }
