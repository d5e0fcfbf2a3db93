#!/usr/bin/env python3
"""The memory of each door's largest requests, many at once, under a small budget of request memory."""

import shutil
import sys
import unittest

import case
import serving
from attack_run import FLAGS, REQUEST_MEMORY, SPARE, warm_up
from doors import CHAT_TEMPLATE, DOORS, at_once


class Memory(case.HostileTest):
    def model(self):
        """models/demo with a chat template."""
        folder = self.folder / "demo"
        if not folder.exists():
            shutil.copytree(serving.ROOT / "models/demo", folder)
            (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
        return folder

    def measure(self, name):
        # Longer prompts are refused once they are tokenized: it is their memory that counts, not the time of the model.
        server = self.server({**FLAGS, "model": self.model(), "stall-deadline": "30s", "max-prompt-tokens": 20000},
                             kill_above=2500)
        warm_up(server)
        server.reset_peak()
        start = server.resident_mib()
        outcomes = at_once(server, DOORS[name]())
        peak = server.peak_mib()
        print(f"\n| {name} | {start:.0f} | {peak:.0f} | {server.resident_mib():.0f} | {outcomes}", flush=True)
        self.assertLessEqual(peak, start + REQUEST_MEMORY + SPARE, name)
        self.assert_serving(server)


def _test(name):
    return lambda self: self.measure(name)


for _name in DOORS:
    setattr(Memory, f"test_{_name}", _test(_name))

if __name__ == "__main__":
    unittest.main()
