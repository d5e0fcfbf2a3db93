"""EleutherAI's lm-evaluation-harness, unchanged, over local-completions with the remote tokenizer: each log-probability equals
that of Score, each output that of the command line. Over local-chat-completions each output is the answer to its message."""

import glob
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import urllib.request

from server_process import BIN, Server

TASKS = pathlib.Path(__file__).resolve().parent / "tasks"
TOLERANCE = 1e-4  # of a sum of log-probabilities of at most 40 tokens, each a float32 of absolute error below 1e-6


def evaluate(folder, server, model, path, more, *tasks):
    """The samples of each task."""
    arguments = f"model=demo,base_url={server.url}/{path},num_concurrent=2,max_retries=1"
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": folder, "OPENAI_API_KEY": "none"}
    subprocess.run(
        [sys.executable, "-m", "lm_eval", "run", "--model", model, "--model_args", arguments + more[0], *more[1:]]
        + ["--include_path", TASKS, "--tasks", ",".join(tasks), "--log_samples", "--output_path", folder],
        cwd=TASKS,
        env=os.environ | environment,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    samples = {}
    for task in tasks:
        (found,) = glob.glob(f"{folder}/**/samples_{task}_*.jsonl", recursive=True)
        samples[task] = [json.loads(line) for line in pathlib.Path(found).read_text(encoding="utf-8").splitlines()]
        assert samples[task], task
    return samples


class LmEvalTest(unittest.TestCase):
    FLAGS = ()

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.FLAGS)
        cls.addClassCleanup(cls.stop)  # also after an error below
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.samples = cls.evaluate()

    @classmethod
    def stop(cls):
        assert cls.server.stop() == 0

    @classmethod
    def evaluate(cls):
        tasks = ("polysketch_choice", "polysketch_rolling", "polysketch_generate")
        more = [",tokenizer_backend=remote"]
        return evaluate(cls.folder.name, cls.server, "local-completions", "completions", more, *tasks)

    def post(self, path, **body):
        request = urllib.request.Request(
            f"http://{self.server.http}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        return json.loads(urllib.request.urlopen(request).read())


class LmEvalChat(LmEvalTest):
    FLAGS = ("--chat-template", "plain")

    @classmethod
    def evaluate(cls):
        more = ["", "--apply_chat_template"]
        return evaluate(cls.folder.name, cls.server, "local-chat-completions", "chat/completions", more, "polysketch_generate")

    def test_generate_until(self):
        for sample in self.samples["polysketch_generate"]:
            message = {"role": "user", "content": sample["doc"]["context"]}
            answer = self.post("/v1/chat/completions", messages=[message], max_tokens=24, stop=["."], temperature=0)
            self.assertEqual(sample["resps"][0][0], answer["choices"][0]["message"]["content"])


class LmEvalText(LmEvalTest):
    def tokenize(self, text, bos):
        return self.post("/tokenize", prompt=text, add_special_tokens=bos)["tokens"]

    def score(self, tokens):
        """The log-probabilities of the tokens but the first."""
        line = [BIN / "polysketch", "--server", self.server.grpc, "score", "--json", "--prompt-tokens", "-"]
        result = subprocess.run(line, input=" ".join(map(str, tokens)), text=True, capture_output=True, check=True)
        return json.loads(result.stdout)["logprobs"]

    def test_loglikelihood(self):
        for sample in self.samples["polysketch_choice"]:
            context = sample["doc"]["context"]
            begin = len(self.tokenize(context, bos=False))
            for choice, response in zip(sample["doc"]["choices"], sample["filtered_resps"], strict=True):
                logprobs = self.score(self.tokenize(context + choice, bos=False))
                self.assertAlmostEqual(float(response[0]), sum(logprobs[begin - 1 :]), delta=TOLERANCE)

    def test_a_greedy_choice_is_found(self):
        greedy = [str(response[1]) for sample in self.samples["polysketch_choice"] for response in sample["filtered_resps"]]
        self.assertIn("True", greedy)
        self.assertIn("False", greedy)

    def test_loglikelihood_rolling(self):
        for sample in self.samples["polysketch_rolling"]:
            logprobs = self.score(self.tokenize(sample["doc"]["text"], bos=True))
            self.assertAlmostEqual(float(sample["filtered_resps"][0]), sum(logprobs), delta=TOLERANCE)

    def test_generate_until(self):
        for sample in self.samples["polysketch_generate"]:
            tokens = self.tokenize(sample["doc"]["context"], bos=False)
            result = subprocess.run(
                [BIN / "polysketch", "--server", self.server.grpc, "complete", "--prompt-tokens", "-", "--temperature", "0"]
                + ["--max-tokens", "24", "--stop", ".", "--json"],
                input=" ".join(map(str, tokens)),
                text=True,
                capture_output=True,
                check=True,
            )
            self.assertEqual(sample["resps"][0][0], json.loads(result.stdout)["text"])


if __name__ == "__main__":
    unittest.main()
