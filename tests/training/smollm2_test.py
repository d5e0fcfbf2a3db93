"""SmolLM2 by the server beside transformers, both from the float32 folder that scripts/get-model makes: log-probabilities of a
text, and greedy tokens. POLYSKETCH_TEST_FULL=1: 8,192 tokens, and 20 prompts of 200 tokens."""

import json
import math
import os
import pathlib
import subprocess
import sys
import unittest
import urllib.request

import torch
import transformers

import support

BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
FOLDER = support.ROOT / "models/smollm2"
FULL = os.environ.get("POLYSKETCH_TEST_FULL") == "1"
TEXT_TOKENS = 8192 if FULL else 1024
PROMPTS, NEW_TOKENS = (20, 200) if FULL else (4, 40)
CHUNK = 512
# Both compute in float32 and sum in other orders: found 8e-5 in 7,700 tokens. transformers rounds the product of position and
# frequency to float32 too, which at position 7,407 moves a log-probability by 1.2e-3; the reference has exact angles.
LOGPROB = 3e-4
# Two logits that are closer than this may be in another order.
TIE = 1e-3

QUESTIONS = (
    "What is the capital of France?",
    "Write a short poem about the sea.",
    "Explain how a bicycle stays upright.",
    "List three uses of a paper clip.",
    "def fibonacci(n):",
    "Translate to French: good morning, my friend.",
    "Why is the sky blue?",
    "Tell me a story about a fox and a lighthouse keeper.",
    "What is 12 times 11?",
    "How do I boil an egg?",
    "Summarise the water cycle in two sentences.",
    "Who wrote Hamlet, and when?",
    "Give me a recipe for bread with 500 g of flour.",
    "What is the difference between a stack and a queue?",
    "Write an email that asks for a day off.",
    "Name the planets of the solar system.",
    "What does the word 'ephemeral' mean?",
    "How many legs does a spider have?\n\nAnswer with a number.",
    "Write a haiku about winter.",
    "Describe a market in the morning, with sounds and smells.",
)


@unittest.skipUnless((BIN / "polysketch-server").exists(), "polysketch-server is not built here")
class SmolLm2Test(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        support.get_model("smollm2")
        command = [BIN / "polysketch-server", "--model", FOLDER, "--listen=127.0.0.1:0", "--http-listen=127.0.0.1:0"]
        command += ["--metrics-listen=", "--device=cpu", "--log-level=error"]
        cls.server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        cls.addClassCleanup(cls.stop)
        ready = json.loads(cls.server.stdout.readline())
        cls.address, cls.rpc_address = ready["http"], ready["listen"]
        cls.tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
        cls.model = transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
        rotary = cls.model.model.rotary_emb
        frequencies = rotary.inv_freq.double()

        def exact(_, position_ids):
            angles = position_ids[..., None].double() * frequencies
            angles = torch.cat((angles, angles), -1)
            return angles.cos().float(), angles.sin().float()

        rotary.forward = exact

    @classmethod
    def stop(cls):
        cls.server.terminate()
        cls.server.wait()
        cls.server.stdout.close()

    def post(self, path: str, body: dict) -> dict:
        data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", data, headers)
        with urllib.request.urlopen(request, timeout=600) as answer:
            return json.load(answer)

    def complete(self, prompt: list[int]) -> dict:
        command = [BIN / "polysketch", "complete", "--json", "--server", self.rpc_address, "--prompt-tokens", "-"]
        command += ["--temperature", "0", "--ignore-eos", "--max-tokens", str(NEW_TOKENS)]
        done = subprocess.run(command, input=" ".join(map(str, prompt)), capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def logits(self, ids: list[int], begin: int):
        """Yields position and logits, float64, after each token from `begin` on, by transformers in chunks."""
        cache = transformers.DynamicCache()
        with torch.no_grad():
            for at in range(0, len(ids), CHUNK):
                part = torch.tensor([ids[at : at + CHUNK]])
                hidden = self.model.model(part, past_key_values=cache, use_cache=True).last_hidden_state[0]
                for row in range(max(begin - at, 0), part.shape[1]):
                    yield at + row, self.model.lm_head(hidden[row]).double()

    def test_logprobs(self):
        text = "".join((support.ROOT / name).read_text() for name in ("ARCHITECTURE.md", "docs/operations.md"))
        ids = self.tokenizer.encode(text)
        self.assertEqual(self.post("/tokenize", {"prompt": text})["tokens"], ids)
        ids = ids[:TEXT_TOKENS]
        self.assertEqual(len(ids), TEXT_TOKENS)
        served = self.post("/v1/completions", {"prompt": ids, "max_tokens": 0, "echo": True, "logprobs": 0})
        served = served["choices"][0]["logprobs"]["token_logprobs"]
        largest = total = 0.0
        for at, logits in self.logits(ids[:-1], 0):
            expected = logits.log_softmax(-1)[ids[at + 1]].item()
            total -= expected
            largest = max(largest, abs(expected - served[at + 1]))
            self.assertLess(abs(expected - served[at + 1]), LOGPROB, f"token {at + 1}")
        mean = total / (len(ids) - 1)
        print(f"\nlog-probabilities of {len(ids)} tokens: at most {largest:.1e} apart; {mean:.4f} nats", file=sys.stderr)
        self.assertLess(mean, math.log(100))  # of 49,152 tokens

    def test_greedy_tokens(self):
        """Each token of the server is transformers' most likely one after the tokens before it, or shares that place."""
        ties, tokens = 0, 0
        for question in QUESTIONS[:PROMPTS]:
            messages = [{"role": "user", "content": question}]
            prompt = self.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
            body = {"max_tokens": NEW_TOKENS, "temperature": 0, "ignore_eos": True}
            chat = self.post("/v1/chat/completions", body | {"messages": messages})
            answer = self.complete(prompt)
            self.assertEqual(chat["choices"][0]["message"]["content"], answer["text"], question)
            self.assertEqual(chat["usage"]["prompt_tokens"], len(prompt), question)
            new = answer["tokens"]
            self.assertEqual(len(new), NEW_TOKENS)
            ids = prompt + new
            for at, logits in self.logits(ids[:-1], len(prompt) - 1):
                tokens += 1
                below = (logits.max() - logits[ids[at + 1]]).item()
                ties += below > 0
                self.assertLess(below, TIE, f"{question!r}, token {at + 1 - len(prompt)}")
        print(f"\n{tokens} greedy tokens of {PROMPTS} prompts: {ties} ties in another order", file=sys.stderr)


if __name__ == "__main__":
    unittest.main()
