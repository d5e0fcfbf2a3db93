"""bench/training-speed: a row for each length, with rates of both kinds."""

import re
import subprocess
import sys
import unittest

import support


class TrainingSpeedTest(unittest.TestCase):
    def test_table(self):
        command = [sys.executable, "-B", support.ROOT / "bench/training-speed", "--lengths", "128,256", "--steps", "1"]
        lines = subprocess.run(
            [*command, "--threads", "1"], check=True, capture_output=True, text=True
        ).stdout.splitlines()
        self.assertEqual(len(lines), 4)
        self.assertIn("| SDPA, tokens/s | learned_sketch_mixed, tokens/s |", lines[0])
        for line, length in zip(lines[2:], (128, 256)):
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            self.assertEqual(cells[0], str(length))
            rates = [int(cell.split()[0].replace(",", "")) for cell in cells[1:3]]
            self.assertTrue(all(re.fullmatch(r"[\d,]+ \([\d,]+ to [\d,]+\)", cell) for cell in cells[1:3]), line)
            # The ratio is of times before they are rounded to whole tokens/s.
            self.assertAlmostEqual(float(cells[3]) / (rates[1] / rates[0]), 1, delta=0.05)

    def test_kinds_and_peers(self):
        command = [sys.executable, "-B", support.ROOT / "bench/training-speed", "--lengths", "64", "--steps", "1", "--threads", "1"]
        options = ["--kinds", "learned_sketch_mixed,linear", "--peers", "default,cudnn", "--layers", "1", "--block", "32"]
        head, _, line = subprocess.run([*command, *options], check=True, capture_output=True, text=True).stdout.splitlines()
        names = [cell.strip() for cell in head.strip("|").split("|")]
        rates = ["SDPA, tokens/s", "SDPA cudnn, tokens/s", "learned_sketch_mixed, tokens/s", "linear, tokens/s"]
        ratios = ["SDPA cudnn, ratio", "learned_sketch_mixed, ratio", "linear, ratio"]
        self.assertEqual(names, ["tokens of a row", *rates, *ratios])
        cells = dict(zip(names, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        # A CPU has no cuDNN: the reason is in place of the rate, and the other columns are measured.
        self.assertEqual(cells["SDPA cudnn, tokens/s"], "no kernel")
        self.assertEqual(cells["SDPA cudnn, ratio"], "")
        self.assertGreater(float(cells["linear, ratio"]), 0)


if __name__ == "__main__":
    unittest.main()
