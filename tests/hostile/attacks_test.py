"""Every attack of attack_run.py beside a neighbour: longer, and those that CI leaves out, with full counts."""

import unittest

import case
from attack_run import ATTACKS, HEADER, AttackRun


class Attacks(unittest.TestCase):
    def test_attacks(self):
        run = AttackRun(full=case.FULL)
        print("\n" + HEADER, flush=True)
        for attack in run.attacks():
            with self.subTest(attack=attack.name):
                for row in run.runs(attack):
                    print(row.markdown(), flush=True)
                self.assertEqual(row.broken, [])

    def test_there_are_enough(self):
        self.assertGreaterEqual(len(ATTACKS), 20)
        self.assertEqual(len({attack.name for attack in ATTACKS}), len(ATTACKS))


if __name__ == "__main__":
    unittest.main()
