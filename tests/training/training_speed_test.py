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


if __name__ == "__main__":
    unittest.main()
