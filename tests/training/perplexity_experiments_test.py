"""experiments/kinds and experiments/sketches: plans, quick runs from tokens to equal perplexities, continued runs, the table."""

import subprocess
import sys
import unittest

import numpy as np
from experiment_support import EXPERIMENTS, IS_BUILT, ExperimentTest, plan

import configs
import language
import results


class PlanTest(unittest.TestCase):
    def test_every_run_has_a_config(self):
        for experiment, count in (("kinds", 2 * 8 + 2 * 2), ("sketches", 2 * 3 * 2)):
            runs = language.expand(plan(experiment, "plan"))
            self.assertEqual(len(runs), count)
            for run in runs.values():
                config = configs.config_of(run["shape"], run["kind"], context_length=run["length"])
                self.assertEqual(run["options"]["--batch"] * run["length"], 4096)
                for field, value in run["kind"].items():
                    self.assertEqual(getattr(config, field), value)

    def test_rows_to_the_end(self):
        rows = language.evenly_spaced(np.arange(100, dtype=np.uint16), 3, 10)
        self.assertEqual(rows[:, 0].tolist(), [0, 45, 90])
        self.assertEqual(rows[2].tolist(), list(range(90, 100)))

    def test_four_digits(self):
        for served, same in ((20.0005, True), (20.002, False)):
            self.assertEqual(language.equal({"torch": {"perplexity": 20.0}, "served": {"perplexity": served}}), same)


class TableTest(ExperimentTest):
    def test_a_difference_is_that_of_rows(self):
        """Rows of 1 and 9 nats, and a model that needs 0.1 and 0.3 more: 0.2 +- 0.1 nats."""
        for model, nats in (("a", [1.0, 9.0]), ("b", [1.1, 9.3])):
            run = {"model": model, "length": 64, "seed": 1}
            made = {"name": f"{model}-64-1", "run": run, "served": {"perplexity": 100.0}, "served_nats": nats}
            results.write(self.dir / f"results/{model}.json", made)
        self.assertEqual(self.table("perplexities")[2:], ["| a | 100.00 |", "| b | 100.00, +22.1% +- 10.0% |"])


@unittest.skipUnless(IS_BUILT, "polysketch-server is not built here")
class QuickTest(ExperimentTest):
    def test_kinds(self):
        found = self.expect_runs("kinds", language.expand(plan("kinds", "quick")))
        for result in found.values():
            self.assertTrue(language.equal(result), result)
        header, _, mixed, softmax = self.table("perplexities")
        self.assertEqual(header, "| model | 64 tokens | 256 tokens |")
        self.assertRegex(mixed, r"^\| learned_sketch_mixed \| [\d.]+ \([\d.]+ to [\d.]+\) \| [\d.]+ \|$")  # two seeds at 64 tokens
        self.assertRegex(softmax, r"^\| softmax (\| [\d.]+, [+-][\d.]+% \+- [\d.]+% ){2}\|$")
        drawn = self.draw(self.dir / "plot.svg", self.dir / "plot.png")
        self.assertEqual(drawn.count("<circle"), 4)  # two models, two contexts, a point of four steps
        self.assertGreater((self.dir / "plot.png").stat().st_size, 1000)

    def draw(self, *files) -> str:
        subprocess.run([sys.executable, EXPERIMENTS / "plot", self.dir / "results", "--out", *files], check=True)
        return files[0].read_text()

    def test_a_run_continues_from_its_model(self):
        """Without its result a run measures the model that it has."""
        self.assertEqual(self.run_quick("kinds", "--only", "softmax-64-1").returncode, 0)
        model, before = self.dir / "softmax-64-1/model/model.safetensors", self.results()["softmax-64-1"]
        written = model.stat().st_mtime_ns
        (self.dir / "results/softmax-64-1.json").unlink()
        self.assertEqual(self.run_quick("kinds", "--only", "softmax-64-1").returncode, 0)
        self.assertEqual(model.stat().st_mtime_ns, written)
        self.assertEqual(self.results()["softmax-64-1"]["served"], before["served"])

    def test_sketches(self):
        for result in self.expect_runs("sketches", language.expand(plan("sketches", "quick"))).values():
            self.assertTrue(language.equal(result), result)


if __name__ == "__main__":
    unittest.main()
