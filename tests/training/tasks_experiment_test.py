"""experiments/tasks: rows of the tasks, a quick run from training to served completions, what a second run makes, the table."""

import json
import os
import sys
import unittest

import numpy as np
from experiment_support import EXPERIMENTS, IS_BUILT, ExperimentTest, plan

sys.path.append(str(EXPERIMENTS / "tasks"))
import configs
import jobs
import synthetic_tasks
from task_plan import expand
from task_training import NO_TARGET, Learned, TaskBatches


class RowsTest(unittest.TestCase):
    """The answers of drawn rows, by another computation than the one that drew them."""

    def rows(self, name: str, **sizes):
        task = synthetic_tasks.make_task(name, sizes)
        rows = task.draw(np.random.default_rng(1), 50)
        self.assertEqual(rows.shape, (50, task.length))
        self.assertTrue((rows >= 0).all() and (rows < task.vocab_size).all())
        self.assertEqual(task.answers[-1][1], task.length)
        return task, rows.tolist()

    def test_reversal(self):
        for row in self.rows("reversal", digits=7)[1]:
            self.assertEqual(row[7:], [10, *reversed(row[:7])])

    def test_selective_copying(self):
        for row in self.rows("selective_copying", symbols=4, copied=3, length=20)[1]:
            self.assertEqual([token for token in row[:20] if token != 4], row[21:])
            self.assertEqual(row[20], 5)

    def test_induction(self):
        starts = set()
        for row in self.rows("induction", symbols=12, length=9, repeated=3)[1]:
            self.assertEqual(len(set(row[:9])), 9)
            starts.add(start := row.index(row[9]))
            self.assertEqual(row[9:], row[start : start + 4])
        self.assertEqual(starts, set(range(6)))

    def test_recall(self):
        task, rows = self.rows("recall", pairs=3, keys=5, values=4)
        self.assertEqual(task.answers, ((7, 8), (9, 10), (11, 12)))
        for row in rows:
            values = dict(zip(row[:6:2], row[1:6:2]))
            self.assertEqual(len(values), 3)
            self.assertEqual(values, dict(zip(row[6::2], row[7::2])))

    def test_only_answers_are_targets(self):
        task = synthetic_tasks.make_task("recall", {"pairs": 2, "keys": 4, "values": 4})
        batches = TaskBatches(task, 3, seed=1)
        saved = json.loads(json.dumps(batches.state()))
        batch = batches.next()
        self.assertEqual((batch.targets[0] != NO_TARGET).nonzero().flatten().tolist(), [4, 6])
        self.assertTrue((batch.targets[:, 4] == batch.tokens[:, 5]).all())
        batches.next()
        batches.restore(saved)
        self.assertTrue((batches.next().tokens == batch.tokens).all())


class LearnedTest(unittest.TestCase):
    def test_the_mean_of_the_last_losses_counts(self):
        learned = Learned(0.5, 3)
        self.assertEqual([learned(loss) for loss in (0.1, 0.1, 2, 0.1, 0.1, 0.1)], [False] * 5 + [True])


class PlanTest(unittest.TestCase):
    def test_every_run_has_a_config(self):
        runs = expand(plan("tasks", "plan"))
        self.assertEqual(len(runs), 22 + 3 * 8)
        for name, run in runs.items():
            task = synthetic_tasks.make_task(run["task"], run["sizes"])
            config = configs.config_of(run["shape"], run["kind"], vocab_size=task.vocab_size, context_length=task.length)
            self.assertLess(config.grain_size, task.length, name)  # else the mixed kinds sketch nothing


@unittest.skipUnless(IS_BUILT, "polysketch-server is not built here")
class QuickTest(ExperimentTest):
    def test_trained_and_served(self):
        quick = plan("tasks", "quick")
        for name, result in self.expect_runs("tasks", expand(quick)).items():
            accuracy = result["accuracy"]
            self.assertTrue(0 <= accuracy["answers"] <= accuracy["tokens"] <= 1, result)
            if name.startswith("reversal"):  # its loss is below 0.01 after 100 of 200 steps
                self.assertGreater(accuracy["answers"], 0.9, name)
                self.assertLess(result["steps"], 200, name)
            else:
                self.assertEqual(result["steps"], 20, name)
        lines = self.table("tasks/table")
        self.assertEqual(lines[0], "| kind | induction | recall | reversal | selective_copying |")
        self.assertEqual([line.split(" | ")[0] for line in lines[2:]], ["| " + kind for kind in sorted(quick["kinds"])])
        self.expect_refusal()

    def expect_refusal(self):
        """A result of another plan is not taken for one of this plan."""
        path = self.dir / "results/recall-softmax.json"
        result = json.loads(path.read_text())
        result["run"]["evaluated_rows"] += 1
        path.write_text(json.dumps(result))
        done = self.run_quick("tasks")
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected the result of the plan's run, found that of another", done.stderr)

    def test_a_run_that_fails(self):
        done = self.run_quick("tasks", "--only", "induction-*", "--bin", self.dir)
        self.assertEqual(done.returncode, 1)
        self.assertIn("failed: induction-learned_sketch_mixed", done.stderr)
        self.assertEqual(self.results(), {})
        self.assertTrue((self.dir / "induction-learned_sketch_mixed/model").exists())
        self.expect_no_other_run_here()

    def expect_no_other_run_here(self):
        """A model of another plan is not taken for one of this plan."""
        other = plan("tasks", "quick") | {"evaluated_rows": 8}
        (self.dir / "other.json").write_text(json.dumps(other))
        done = self.run_quick("tasks", "--only", "induction-*", "--plan", self.dir / "other.json")
        self.assertEqual(done.returncode, 1)
        self.assertIn("expected the plan's run, found another", (self.dir / "induction-learned_sketch_mixed.log").read_text())

    def test_one_driver_in_a_folder(self):
        with jobs.only_one(self.dir):
            done = self.run_quick("tasks")
        self.assertEqual(done.returncode, 1)
        self.assertIn("another process works here", done.stderr)


class JobsTest(ExperimentTest):
    def test_jobs_hold_the_lock(self):
        """A process that a killed driver left keeps others out."""
        with jobs.only_one(self.dir):
            left = jobs._start(jobs.Job("one", ["sleep", "60"], self.dir / "log"), 1, idle=True)
        self.addCleanup(left.wait)
        self.addCleanup(left.kill)
        with self.assertRaises(jobs.Busy), jobs.only_one(self.dir):
            pass
        self.assertEqual(os.sched_getscheduler(left.pid), os.SCHED_IDLE)
        left.kill()
        left.wait()
        with jobs.only_one(self.dir):
            pass

    def test_all_run_and_failures_are_named(self):
        ended = []
        made = [jobs.Job(str(i), ["sh", "-c", f"exit {i % 2}"], self.dir / "log") for i in range(5)]
        failed = jobs.run_jobs(made, at_once=2, threads=1, ended=lambda job, status: ended.append((job.name, status)))
        self.assertEqual(sorted(failed), ["1", "3"])
        self.assertEqual(sorted(ended), [(str(i), i % 2) for i in range(5)])


if __name__ == "__main__":
    unittest.main()
