"""A run that is killed and started again has the losses of one that was not, bit for bit."""

import pathlib
import signal
import time
import unittest

from train_support import TrainTest, kill_all

STEPS, SAVE_EVERY, KILL_AFTER = 24, 5, 12


def lines_of(path: pathlib.Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for_lines(process, path: pathlib.Path, count: int) -> None:
    end = time.monotonic() + 120
    while lines_of(path) <= count and process.poll() is None and time.monotonic() < end:
        time.sleep(0.005)


class ResumeTest(TrainTest):
    def kill_and_resume(self, *options, processes: int = 1):
        options = (*options, f"--steps={STEPS}", f"--save-every={SAVE_EVERY}")
        self.finish(self.start("whole", *options, processes=processes))
        self.kill_after(self.start("killed", *options, processes=processes), self.dir / "killed/losses.csv")
        written = lines_of(self.dir / "killed/losses.csv")
        self.assertLess(written, STEPS + 1, "the run ended before it was killed")
        self.assertFalse((self.dir / "killed/model").exists())
        stderr = self.finish(self.start("killed", *options, processes=processes))
        self.assertRegex(stderr, r"continues after step \d+")
        whole, killed = self.losses("whole"), self.losses("killed")
        self.assertEqual(len(whole), STEPS)
        self.assertEqual(whole, killed)
        self.assertEqual(len({loss for loss, _ in whole}), STEPS)
        folders = [self.dir / run / "model/model.safetensors" for run in ("whole", "killed")]
        self.assertEqual(*(folder.read_bytes() for folder in folders))

    def finish(self, process) -> str:
        stderr = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 0, stderr)
        return stderr

    def kill_after(self, process, log: pathlib.Path) -> None:
        wait_for_lines(process, log, KILL_AFTER)
        kill_all(process)
        self.assertGreater(lines_of(log), KILL_AFTER)

    def test_streamed_with_accumulation(self):
        self.kill_and_resume("--sequences=streamed", "--accumulate=2")

    def test_two_processes(self):
        self.kill_and_resume("--sequences=streamed", "--decay-gate", processes=2)


class SignalTest(TrainTest):
    def test_sigterm_leaves_a_checkpoint_of_its_step(self):
        process = self.start("run", "--steps=100000", "--save-every=100000")
        wait_for_lines(process, self.dir / "run/losses.csv", 4)
        process.send_signal(signal.SIGTERM)
        stderr = process.communicate(timeout=120)[1]
        self.assertEqual(process.returncode, 130, stderr)
        step = len(self.losses("run"))
        self.assertIn(f"stopped after step {step}; the same command continues", stderr)
        self.assertEqual([path.name for path in (self.dir / "run/checkpoints").iterdir()], [f"step-{step:08d}"])


class ResumeInOneProcessTest(TrainTest):
    """A shorter stop, by --minutes: a run in pieces."""

    def in_pieces(self, *options):
        options = (*options, "--steps=6", "--save-every=100")
        self.train("whole", *options)
        for _ in range(6):
            self.train("pieces", *options, "--minutes=1e-9")
        self.assertEqual(len(self.losses("pieces")), 6)
        self.assertEqual(self.losses("whole"), self.losses("pieces"))

    def test_packed(self):
        self.in_pieces("--sequences=packed")

    def test_streamed_bf16(self):
        self.in_pieces("--sequences=streamed", "--precision=bf16")

    def test_with_a_decay_gate(self):
        self.in_pieces("--sequences=streamed", "--decay-gate")


if __name__ == "__main__":
    unittest.main()
