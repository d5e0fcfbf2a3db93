"""EleutherAI's lm-evaluation-harness, unchanged, over local-completions with the remote tokenizer: each log-probability equals
that of Score, each output that of the command line."""

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


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server()
        cls.addClassCleanup(cls.stop)  # also after an error below
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.samples = cls.evaluate("polysketch_choice", "polysketch_rolling", "polysketch_generate")

    @classmethod
    def stop(cls):
        assert cls.server.stop() == 0

    @classmethod
    def evaluate(cls, *tasks):
        model = f"model=demo,base_url={cls.server.url}/completions,tokenizer_backend=remote,num_concurrent=2,max_retries=1"
        environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HOME": cls.folder.name, "OPENAI_API_KEY": "none"}
        subprocess.run(
            [sys.executable, "-m", "lm_eval", "run", "--model", "local-completions", "--model_args", model]
            + ["--include_path", TASKS, "--tasks", ",".join(tasks), "--log_samples", "--output_path", cls.folder.name],
            cwd=TASKS,
            env=os.environ | environment,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        samples = {}
        for task in tasks:
            (path,) = glob.glob(f"{cls.folder.name}/**/samples_{task}_*.jsonl", recursive=True)
            samples[task] = [json.loads(line) for line in pathlib.Path(path).read_text(encoding="utf-8").splitlines()]
            assert samples[task], task
        return samples

    def tokenize(self, text, bos):
        body = json.dumps({"prompt": text, "add_special_tokens": bos}).encode()
        request = urllib.request.Request(f"http://{self.server.http}/tokenize", body, {"Content-Type": "application/json"})
        return json.loads(urllib.request.urlopen(request).read())["tokens"]

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
