"""SmolLM2 with 24 of its 30 layers as windows with sinks: by the server beside transformers with the same masks. Of it, and of
models/smollm2-polysketch, all of whose layers have windows, what a server promises of any model: chunks, batches, sessions, forks,
snapshots, states, drafts, the prefix cache, preemptions and migrations between servers change no token.
POLYSKETCH_TEST_FULL=1: 100 preemptions, otherwise 20."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.request

import torch
import transformers

import frame_models
import support

BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
SMOLLM2 = (support.ROOT / "models/smollm2").resolve()
LAYERS = 30
WINDOWS = {
    "layer_types": ["full_attention" if i % 5 == 0 else frame_models.WITH_SINKS for i in range(LAYERS)],
    "attention_window": 96,
    "attention_window_kind": "sliding",
    "attention_sinks": 4,
}
# As smollm2_test.py has it: sums in another order. Prompts are short, so that the angles of float32 do not matter.
LOGPROB = 3e-4
# Prompts are longer than a window, its blocks and the sinks: 3 x 64 + 96, and 2 x 128 + 4.
PROMPT, NEW = 400, 48
PREEMPTIONS = 100 if os.environ.get("POLYSKETCH_TEST_FULL") == "1" else 20


class Server:
    """A server of the folder. --weights q8: decoding takes a third of the time."""

    def __init__(self, folder: pathlib.Path, *flags: str):
        command = [BIN / "polysketch-server", "--model", folder, "--model-root", SMOLLM2, "--listen=127.0.0.1:0"]
        command += ["--http-listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0", "--device=cpu", "--log-level=error", *flags]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        self.ready = json.loads(self.process.stdout.readline())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()
        self.process.stdout.close()

    def run(self, *arguments: str, prompt: list[int] | None = None) -> dict:
        command = [BIN / "polysketch", *arguments, "--json", "--server", self.ready["listen"]]
        if prompt is not None:
            command += ["--prompt-tokens", "-"]
        text = None if prompt is None else " ".join(map(str, prompt))
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(done.stderr)
        return json.loads(done.stdout)

    def complete(self, *arguments: str, prompt: list[int] | None = None) -> dict:
        fixed = ("complete", "--temperature", "0", "--ignore-eos", "--max-tokens", str(NEW))
        return self.run(*fixed, *arguments, prompt=prompt)

    def metric(self, name: str) -> float:
        with urllib.request.urlopen(f"http://{self.ready['metrics']}/metrics", timeout=60) as page:
            values = re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", page.read().decode(), re.MULTILINE)
        return sum(map(float, values))


class Promises:
    """Of a test case with a folder."""

    folder: pathlib.Path

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.temporary = pathlib.Path(temporary.name)
        ids = transformers.AutoTokenizer.from_pretrained(SMOLLM2).encode((support.ROOT / "ARCHITECTURE.md").read_text())
        self.prompts = [ids[at : at + PROMPT] for at in range(0, 3 * PROMPT, PROMPT)]

    def server(self, *flags: str) -> Server:
        return Server(self.folder, "--weights=q8", *flags)

    def test_everything_gives_the_tokens_of_a_cold_run(self):
        first, second, third = self.prompts
        store = f"dir:{self.temporary / 'states'}"
        with self.server("--prefix-cache-min-tokens=0", "--draft-tokens=0") as cold:
            alone = [cold.complete(prompt=prompt)["tokens"] for prompt in self.prompts]
            joined = cold.complete(prompt=first + second)["tokens"]
        with self.server("--state-store", store, "--prefix-cache-min-tokens=32") as server:
            # Chunks of another size; the prefix cache, whole and in part; drafts.
            self.assertEqual(server.complete(prompt=first)["tokens"], alone[0])
            again = server.complete("--draft-tokens", "8", prompt=first)
            self.assertEqual(again["tokens"], alone[0])
            self.assertGreater(again["usage"]["cached_tokens"], 0)
            self.assertEqual(server.complete(prompt=first + second)["tokens"], joined)
            # A session in turns, its forks, a snapshot that is restored, a state of the client.
            session = server.run("session", "create")["session"]
            server.run("session", "append", session, prompt=first)
            fork = server.run("session", "fork", session)["session"]
            snapshot = server.run("session", "snapshot", session)["snapshot"]
            self.assertEqual(server.complete("--session", session)["tokens"], alone[0])
            self.assertEqual(server.complete("--session", fork, prompt=second)["tokens"], joined)
            restored = server.run("session", "restore", snapshot)["session"]
            self.assertEqual(server.complete("--session", restored, prompt=second)["tokens"], joined)
            state = str(self.temporary / "state.bin")
            server.run("complete", "--max-tokens", "0", "--state-out", state, prompt=first)
            self.assertEqual(server.complete("--state-in", state, prompt=second)["tokens"], joined)
            # Another replica finds the snapshot in the store.
            with self.server("--state-store", store) as other:
                there = other.run("session", "restore", snapshot)["session"]
                self.assertEqual(other.complete("--session", there)["tokens"], alone[0])
        self.check_preemptions(alone)
        self.check_migration(third, alone[2], store)

    def check_preemptions(self, alone: list[list[int]]):
        """More requests of two clients than slots: slots change hands until that many preemptions are counted."""
        with self.server("--max-sequences=2", "--max-priority=4", "--prefix-cache-min-tokens=0") as server:
            failures = []

            def client(number: int):
                for turn in range(1000):
                    if failures or server.metric("polysketch_num_preemptions_total") >= PREEMPTIONS:
                        return
                    which = (number + turn) % len(alone)
                    flags = ("--tenant", f"tenant-{number}", "--priority", str((number + turn) % 5))
                    tokens = server.complete(*flags, prompt=self.prompts[which])["tokens"]
                    if tokens != alone[which]:
                        failures.append((number, turn, which))

            threads = [threading.Thread(target=client, args=(number,)) for number in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            self.assertEqual(failures, [])
            self.assertGreaterEqual(server.metric("polysketch_num_preemptions_total"), PREEMPTIONS)

    def check_migration(self, prompt: list[int], alone: list[int], store: str):
        """A stream that a server's end cuts goes on at another server."""
        with self.server("--state-store", store) as first, self.server("--state-store", store) as second:
            command = [BIN / "polysketch", "complete", "--json-stream", "--server", first.ready["listen"], "--prompt-tokens", "-"]
            command += ["--temperature", "0", "--ignore-eos", "--max-tokens", str(NEW)]
            stream = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            with stream:
                stream.stdin.write(" ".join(map(str, prompt)))
                stream.stdin.close()
                tokens, resume = [], None
                for line in stream.stdout:
                    event = json.loads(line)
                    before = len(tokens)
                    tokens += event.get("tokens", [])
                    if before < NEW // 3 <= len(tokens):
                        first.process.send_signal(signal.SIGTERM)
                    resume = event.get("resume_token") or resume
            self.assertIsNotNone(resume, "the stream ended before the server")
            self.assertGreaterEqual(len(tokens), NEW // 3)
            rest = second.run("complete", "--resume", resume)["tokens"]
            self.assertEqual(tokens + rest, alone)


@unittest.skipUnless((BIN / "polysketch-server").exists(), "polysketch-server is not built here")
class MixtureTest(Promises, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        support.get_model("smollm2")
        temporary = tempfile.TemporaryDirectory()
        cls.addClassCleanup(temporary.cleanup)
        cls.folder = pathlib.Path(temporary.name)
        for file in ("model.safetensors", "tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            (cls.folder / file).symlink_to(SMOLLM2 / file)
        config = json.loads((SMOLLM2 / "config.json").read_text())
        (cls.folder / "config.json").write_text(json.dumps(config | WINDOWS))

    def test_logprobs(self):
        model = transformers.AutoModelForCausalLM.from_pretrained(SMOLLM2, dtype=torch.float32, attn_implementation="eager").eval()
        frame_models.with_sinks(model, WINDOWS, {})
        ids = self.prompts[0] + self.prompts[1]
        with Server(self.folder, "--weights=f32") as server:
            body = {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0}
            data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://{server.ready['http']}/v1/completions", data, headers)
            with urllib.request.urlopen(request, timeout=600) as answer:
                served = json.load(answer)["choices"][0]["logprobs"]["token_logprobs"]
        with torch.no_grad():
            expected = model(torch.tensor([ids]), use_cache=False).logits[0].double().log_softmax(-1)
        largest = max(abs(expected[at, ids[at + 1]].item() - served[at + 1]) for at in range(len(ids) - 1))
        print(f"\nlog-probabilities of {len(ids)} tokens: at most {largest:.1e} apart", file=sys.stderr)
        self.assertLess(largest, LOGPROB)


@unittest.skipUnless((BIN / "polysketch-server").exists(), "polysketch-server is not built here")
class PolysketchTest(Promises, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = support.get_model("smollm2-polysketch")


if __name__ == "__main__":
    unittest.main()
