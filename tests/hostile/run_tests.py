#!/usr/bin/env python3
"""Runs the tests of this folder and prints what each took: run_tests.py [MODULE...]. POLYSKETCH_TEST_FULL=1 selects full counts."""

import pathlib
import sys
import time
import unittest

HERE = pathlib.Path(__file__).resolve().parent


class Result(unittest.TextTestResult):
    def startTest(self, test):
        self._began = time.monotonic()
        super().startTest(test)

    def stopTest(self, test):
        super().stopTest(test)
        self.stream.writeln(f"    {time.monotonic() - self._began:.1f} s")


def main(names):
    sys.path.insert(0, str(HERE))
    loader = unittest.defaultTestLoader
    tests = loader.loadTestsFromNames(names) if names else loader.discover(HERE, "*_test.py")
    result = unittest.TextTestRunner(verbosity=2, resultclass=Result, warnings="ignore").run(tests)
    # A test that is skipped has shown nothing.
    return 0 if result.wasSuccessful() and not result.skipped and result.testsRun > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
