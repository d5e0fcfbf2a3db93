"""A short soak: every kind of call at once, on a store with faults, cancelled and stalled; answers and what is left are checked.
soak.py runs it for an hour."""

import unittest

import case
import soak


class Soak(case.HostileTest):
    def test_answers_rightly_and_keeps_nothing(self):
        run = soak.Soak(self.folder, minutes=8 / 60, rounds=2)
        self.addCleanup(run.stop)
        rows = []
        run.run(rows.append)
        self.assertEqual(run.broken, [], "\n".join((*rows, *run.report())))


if __name__ == "__main__":
    unittest.main()
