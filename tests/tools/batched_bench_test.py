"""bench/batched_bench.py, with programs that print what llama-batched-bench prints."""

import sys
import unittest

import support

sys.path.insert(0, str(support.ROOT / "bench"))
import batched_bench  # noqa: E402

# Of llama-batched-bench of ik_llama.cpp 8337e4cd3; the numbers are made up.
_OUTPUT = """\
llama_new_context_with_model: graph nodes  = 391

main: n_kv_max = 4096, n_batch = 2048, n_ubatch = 512, flash_attn = 1, is_pp_shared = 1, n_gpu_layers = -1, n_threads = 2, n_threads_batch = 2

|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |      T s |    S t/s |
|-------|--------|------|--------|----------|----------|----------|----------|----------|----------|
|   512 |     64 |    1 |    576 |    0.165 |  3097.25 |    0.282 |   227.00 |    0.447 |  1288.57 |
|   512 |     64 |    8 |   1024 |    0.166 |  3084.34 |    0.812 |   630.54 |    0.978 |  1047.03 |

llama_print_timings:        load time =     123.45 ms
"""


class BatchedBenchTest(support.ToolTest):
    def program(self, text: str, status: int = 0) -> str:
        """A program that prints its arguments and the text on stderr, as LOG_TEE does."""
        path = self.dir / "llama-batched-bench"
        path.write_text(f"#!/bin/sh\necho \"$@\" >&2\ncat >&2 <<'END'\n{text}END\nexit {status}\n")
        path.chmod(0o755)
        return str(path)

    def test_table(self):
        rows = batched_bench.parse(_OUTPUT)
        self.assertEqual([row["B"] for row in rows], [1, 8])
        self.assertEqual(rows[1]["S_TG t/s"], 630.54)
        self.assertEqual(batched_bench.parse("| 1 | 2 |\nno table"), [])

    def test_a_line_of_another_width_is_an_error(self):
        with self.assertRaisesRegex(ValueError, "expected 10 columns"):
            batched_bench.parse(_OUTPUT + "| 1 | 2 |\n")

    def test_command(self):
        line = batched_bench.command("bench", "model.gguf", ["-fa", "1"], 0, [1, 8], 64, 2)
        self.assertEqual(line[line.index("-npp") + 1], "1")  # a prompt has a token
        self.assertEqual(line[line.index("-npl") + 1], "1,8")
        self.assertGreaterEqual(int(line[line.index("-c") + 1]), 1 + 8 * 64)
        self.assertEqual(line[-3:], ["-pps", "-fa", "1"])
        line = batched_bench.command("bench", "model.gguf", ["-fa", "1"], 512, [1, 8], 64, 2, shared_prompt=False)
        self.assertGreaterEqual(int(line[line.index("-c") + 1]), 8 * (512 + 64))
        self.assertNotIn("-pps", line)

    def test_measure(self):
        prefill, decode = batched_bench.measure([self.program(_OUTPUT)], [1, 8])
        self.assertEqual((prefill, decode), (3097.25, {1: 227.0, 8: 630.54}))

    def test_missing_rows_and_failures_say_what_was_printed(self):
        with self.assertRaisesRegex(SystemExit, r"no rows for batches \[32\]"):
            batched_bench.measure([self.program(_OUTPUT)], [1, 32])
        with self.assertRaisesRegex(SystemExit, "(?s)status 1, .*unable to load model"):
            batched_bench.measure([self.program("error: unable to load model\n", 1)], [1])


if __name__ == "__main__":
    unittest.main()
