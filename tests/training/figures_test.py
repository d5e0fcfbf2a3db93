"""bench/figures --quick: every point of every kind, what a limit leaves, what a second run measures; the drawings."""

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock
import xml.etree.ElementTree

from PIL import Image

import support

BIN = pathlib.Path(os.environ.get("POLYSKETCH_BIN_DIR", support.ROOT / "build/cpu/bin"))
sys.path.append(str(support.ROOT / "bench"))

import figures
import figures_draw
import figures_measure
import figures_plan
import hybrid_picture
import limited
import training_point
from figures_store import Store, key_of

from polysketch_tools.model_config import KV_KINDS, UNSERVED_KINDS

QUICK = figures_plan.QUICK_SHAPES
SETTINGS = figures_measure.Settings(threads=1, weights="bf16", device="cpu", repeats=1, attention="torch")


def measured(_, job: figures_plan.Job) -> list[dict]:
    """In the place of Meter.measure: points of 1 us."""
    return [job.point(measure) | {"status": "measured", "us_per_token": 1.0} for measure in job.measures]


class FolderTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def data(self) -> dict:
        return json.loads((self.dir / "figures.json").read_text())


@unittest.skipUnless((BIN / "polysketch-bench").exists(), "polysketch-bench is not built here")
class QuickTest(FolderTest):
    def figures(self, *options) -> list[str]:
        """Runs the program; returns its lines of progress."""
        command = [support.ROOT / "bench/figures", "--quick", "--out", self.dir, "--models", self.dir / "models", "--bin", BIN]
        done = subprocess.run([*map(str, command), "--threads", "1", *options], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout.splitlines()

    def test_every_kind_and_again(self):
        lines = self.figures()
        planned = list(figures_plan.jobs(QUICK, figures_plan.KINDS))
        self.assertEqual(len(lines), len(planned))
        data = self.data()
        found = {key_of(point) for point in data["points"]}
        self.assertEqual(found, {(j.shape.name, j.kind, measure, j.context) for j in planned for measure in j.measures})
        self.assertEqual(len(data["points"]), len(found))
        for point in data["points"]:
            self.assertEqual(point["status"], "measured")
            self.assertAlmostEqual(point["us_per_token"], 1e6 * point["seconds"] / point["tokens"])
            self.assertEqual("state_bytes" in point, point["measure"] == "decode")
        self.expect_states(data["points"])
        for name in ("speed-quick", "speed-quick-4-layers"):
            self.expect_drawn(name)
        again = self.figures()
        self.assertEqual(len(again), len(planned))
        self.assertEqual(self.data()["points"], data["points"])

    def expect_states(self, points: list[dict]):
        """A KV cache grows with the context, a recurrent state does not."""
        for kind in figures_plan.KINDS:
            if kind not in UNSERVED_KINDS:
                sizes = {p["context"]: p["state_bytes"] for p in points
                         if (p["attention"], p["measure"], p["shape"]) == (kind, "decode", "quick")}  # fmt: skip
                (self.assertGreater if kind in KV_KINDS else self.assertEqual)(sizes[256], sizes[64], kind)

    def expect_drawn(self, name: str):
        svg = xml.etree.ElementTree.parse(self.dir / f"{name}.svg").getroot()
        texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
        for kind in figures_plan.KINDS:
            self.assertIn(kind, texts)
        with Image.open(self.dir / f"{name}.png") as image:
            sides = svg.get("viewBox").split()[2:]
            self.assertEqual(image.size, tuple(2 * round(float(side)) for side in sides))
            self.assertGreater(len(image.getcolors(1 << 24)), len(figures_plan.KINDS))

    def test_memory(self):
        """20 MiB are too few for the program."""
        for memory, status in ((20 << 20, "out of memory"), (4 << 30, "measured")):
            meter = figures_measure.Meter(BIN, self.dir / "models", SETTINGS, figures_measure.Limits(60, memory))
            points = meter.measure(figures_plan.Job(QUICK[0], "linear", 64, figures_plan.SERVED))
            self.assertEqual([point["status"] for point in points], [status] * 2)
            self.assertEqual([point.get("limit_bytes") for point in points], [memory if status == "out of memory" else None] * 2)

    def test_limits_and_what_a_higher_one_measures(self):
        options = ("--kinds", "softmax", "--limit-seconds", "0.01")
        lines = self.figures(*options)
        for point in self.data()["points"]:
            self.assertEqual((point["status"], point["limit_s"]), ("too slow", 0.01))
            self.assertEqual("reached_at_context" in point, (point["shape"], point["context"]) == ("quick", 256))
        self.assertIn("[1/6] quick softmax 64: prefill too slow, decode too slow", lines[0])
        self.figures("--kinds", "softmax")
        self.assertEqual({point["status"] for point in self.data()["points"]}, {"measured"})


class PointsTest(FolderTest):
    """What the program makes of the outcome of a job, without measuring."""

    def setUp(self):
        super().setUp()
        self.limits = figures_measure.Limits(600, 1 << 30)
        self.job = figures_plan.Job(QUICK[0], "softmax", 256, figures_plan.TRAINED)

    def store(self, **about) -> Store:
        return Store(self.dir / "figures.json", {"commit": "a", "machine": {}, "settings": {}} | about, lambda point: True)

    def point(self, context: int, status: str, measure: str = "forward", **more) -> dict:
        return {"shape": "quick", "attention": "softmax", "measure": measure, "context": context, "status": status} | more

    def test_a_limit_holds_for_longer_contexts_of_its_measure(self):
        store, measured = self.store(), []

        class Meter:
            def measure(meter, job):
                measured.append(job)
                return [self.point(256, "measured", measure, us_per_token=1.0) for measure in job.measures]

        store.add(self.point(64, "out of memory", "forward_backward", limit_bytes=1 << 30))
        points = figures._points(store, Meter(), self.limits, self.job)
        self.assertEqual([job.measures for job in measured], [("forward",)])
        reached = {point["measure"]: point.get("reached_at_context") for point in points}
        self.assertEqual(reached, {"forward_backward": 64, "forward": None})
        self.assertEqual(points[0]["status"], "out of memory")

    def test_another_commit_is_kept_apart(self):
        first = self.store()
        first.add(self.point(64, "measured", us_per_token=1.0))
        self.assertEqual(len(self.store().points), 1)
        self.assertEqual(self.store(commit="b").points, [])
        self.assertEqual(json.loads((self.dir / "figures-1.json").read_text())["points"], first.points)

    def test_lower_limits_are_measured_again(self):
        for point, counts in (
            (self.point(64, "too slow", limit_s=599), False),
            (self.point(64, "too slow", limit_s=600), True),
            (self.point(64, "out of memory", limit_bytes=1), False),
            (self.point(64, "out of memory", limit_bytes=1 << 30), True),
            (self.point(64, "measured", repeats=3), True),
            (self.point(64, "measured", repeats=2), False),
        ):
            self.assertEqual(figures._counts(point, self.limits, 3), counts, point)

    def test_what_was_printed_before_the_limit_counts(self):
        meter = figures_measure.Meter(self.dir, self.dir, SETTINGS, self.limits)
        printed = '{"measure": "forward", "seconds": 0.5, "runs": [0.5], "backend": "torch"}\n{"measure": "forward_ba'
        for status in (limited.TOO_SLOW, limited.OUT_OF_MEMORY):
            with unittest.mock.patch.object(limited.Worker, "ask", return_value=limited.Outcome(status, printed)):
                forward, both = meter.measure(self.job)
            self.assertEqual((forward["status"], forward["us_per_token"]), ("measured", 0.5e6 / 256))
            self.assertEqual(both["status"], status)

    def test_the_first_run_counts_until_there_are_others(self):
        for took, counted in (((3.0, 2.0, 1.0, 0.5), [[3.0], [2.0], [2.0, 1.0]]), ((20.0,), [[20.0]])):
            self.assertEqual(list(training_point.measured(iter(took).__next__, 2)), counted)
        rows = ({"measure": "forward", "seconds": seconds, "runs": [seconds], "backend": "torch"} for seconds in (3.0, 2.0))
        lines = list(map(json.dumps, rows))
        for printed, seconds in (("\n".join(lines) + "\n", 2.0), ("\n".join(lines), 3.0)):
            self.assertEqual(figures_measure._trained_rows(printed, self.job)["forward"]["seconds"], seconds)

    def test_what_is_not_asked_for_keeps_its_limit(self):
        """A higher limit for one measure leaves the points of others."""
        limited_points = [self.point(64, "too slow", measure, limit_s=1) for measure in ("forward", "prefill")]
        store = self.store()
        for point in limited_points:
            store.add(point)
        out = self.data() | {"commit": figures.commit(), "machine": figures._machine("cpu"), "settings": SETTINGS.to_dict()}
        (self.dir / "figures.json").write_text(json.dumps(out))

        with unittest.mock.patch.object(figures_measure.Meter, "measure", measured), contextlib.redirect_stdout(io.StringIO()):
            figures.command(["--quick", "--out", str(self.dir), "--kinds", "softmax", "--measures", "forward", "--threads", "1"])
        found = {(point["measure"], point["shape"], point["context"]): point["status"] for point in self.data()["points"]}
        self.assertEqual({key[0] for key in found}, {"forward", "prefill"})
        self.assertEqual((found["prefill", "quick", 64], found["forward", "quick", 64]), ("too slow", "measured"))

    def test_a_failure_is_no_limit(self):
        with self.assertRaisesRegex(limited.ChildError, "status 3: no such thing"):
            limited.run(["sh", "-c", "echo no such thing >&2; exit 3"], seconds=60, memory=0)
        self.assertEqual(limited.run(["sleep", "60"], seconds=0.1, memory=0).status, "too slow")
        self.assertEqual(limited.run(["sh", "-c", "kill -9 $$"], seconds=60, memory=0).status, "out of memory")
        big = [sys.executable, "-c", "bytes(1 << 30)"]
        self.assertEqual(limited.run(big, seconds=60, memory=1 << 29).status, "out of memory")
        self.assertEqual(limited.run(big, seconds=60, memory=1 << 32).status, "measured")

    def test_a_worker_that_reaches_a_limit_is_started_again(self):
        program = """import os, sys, time
print("started", flush=True)
for line in sys.stdin:
    print("asked", line, end="", flush=True)
    exec(line)
    print(flush=True)
"""
        with contextlib.closing(limited.Worker([sys.executable, "-c", program], memory=1 << 29)) as worker:
            for line, status, first in (
                ("pass", "measured", True),
                ("time.sleep(60)", "too slow", False),
                ("bytes(1 << 30)", "out of memory", True),
                ("os.kill(os.getpid(), 9)", "out of memory", True),
                ("1", "measured", True),
                ("2", "measured", False),
            ):
                answer = worker.ask(line, seconds=1 if status == "too slow" else 60)
                self.assertEqual(answer.status, status, line)
                ended = "\n" if status == "measured" else ""
                self.assertEqual(answer.output, ("started\n" if first else "") + f"asked {line}\n{ended}")
            with self.assertRaisesRegex(limited.ChildError, "(?s)status 1: .*no such thing"):
                worker.ask("raise ValueError('no such thing')", seconds=60)

    def test_a_job_that_fails_stops_no_other(self):
        def measure(meter, job):
            if job.context == 64:
                raise limited.ChildError("no such thing")
            return measured(meter, job)

        command = ["--quick", "--out", str(self.dir), "--kinds", "softmax", "--measures", "forward", "--threads", "1"]
        with unittest.mock.patch.object(figures_measure.Meter, "measure", measure), contextlib.redirect_stdout(io.StringIO()):
            with self.assertRaisesRegex(figures.ToolError, "(?s)1 of 3 jobs failed:.*quick softmax 64: no such thing"):
                figures.command(command)
        self.assertEqual([point["context"] for point in self.data()["points"]], [256, 256])

    def test_rows_of_another_kind_are_refused(self):
        row = {"stage": "prefill", "seconds": 1, "tokens": 256}
        for found, words in (({"attention": "linear"}, "expected rows of softmax, found linear"), ({}, "build polysketch-bench anew")):
            with self.assertRaisesRegex(limited.ChildError, words):
                figures_measure._served_rows(json.dumps({"results": [row | found]}), self.job)

    def test_marks_of_limits(self):
        """A cross and an arrow are drawn for the points that have no value, at their context, and none without them."""
        measured = [self.point(64, "measured", us_per_token=2.0)]
        counts = []
        for points in (measured, [*measured, self.point(256, "out of memory")], [*measured, self.point(256, "too slow")]):
            counts.append(figures_draw.draw(QUICK[0], points, "").svg().count("<polyline"))
        # A cross is two lines, an arrow one.
        self.assertEqual([count - counts[0] for count in counts], [0, 2, 1])
        bars = self.point(256, "too slow") | {"shape": "quick-4-layers"}
        self.assertIn(">too slow<", figures_draw.draw(QUICK[1], [bars], "").svg())


class PlotTest(FolderTest):
    def test_a_line_for_each_kind(self):
        """bench/plot keys lines by kind and format; results that name no kind keep their format's name."""
        def row(stage, context, **more):
            return {"stage": stage, "context": context, "batch": 1, "weights": "q8", "tokens_per_s": 100.0 + context} | more

        for kinds, labels in (([{"attention": "linear"}, {"attention": "softmax"}], ["linear, q8", "softmax, q8"]), ([{}], ["q8"])):
            rows = [row(stage, context, **kind) for kind in kinds for stage in ("prefill", "decode") for context in (512, 4096)]
            results = self.dir / "results.json"
            results.write_text(json.dumps({"cpu": "X", "threads": 2, "backend": "cpu", "results": rows}))
            command = [sys.executable, support.ROOT / "bench/plot", results, "--out", self.dir / "plot.svg"]
            subprocess.run(list(map(str, command)), check=True)
            svg = xml.etree.ElementTree.parse(self.dir / "plot.svg").getroot()
            texts = [element.text for element in svg.iter("{http://www.w3.org/2000/svg}text")]
            for label in labels:
                self.assertEqual(texts.count(label), 2)  # in the panel of prefill and in that of decoding


class HybridPictureTest(unittest.TestCase):
    def test_panels(self):
        def answer(right, distance):
            return [0.5, 2, right, distance]

        results = {
            "loss": {
                "teacher": {"a 0": {"first": [3.0, 3.0, 3.0, 3.0], "rest": [2.0]}},
                "m": {"a 0": {"first": [3.125, 3.25, 3.5, 4.0], "rest": [2.0]}},
            },
            "recall": {
                model: {"1024 codes 0": {"answers": [answer(right, 300), answer(1, 500), answer(2, 700)]}, "1024 values 0": {}}
                for model, right in (("teacher", 2), ("m", 0))
            },
        }
        middle = 256 * 2**0.5
        lost = {middle: [0.125], 2 * middle: [0.25], 4 * middle: [0.5, 1.0], 8 * middle: [0]}
        self.assertEqual(hybrid_picture.lost(results["loss"], "m"), lost)
        self.assertEqual(hybrid_picture.recalled(results["recall"], "m"), {middle: [0.0, 0.0], 2 * middle: [1.0]})
        line = hybrid_picture.line("m", "#000", {1: [0.25], 2: [0.0, 1.0]})
        self.assertEqual((line.points, line.errors), ({1: 0.25, 2: 0.5}, {2: 0.5}))
        shapes = hybrid_picture.draw(results, ["m"]).svg()
        # A loss with five depths in four octaves; two models that recall at two distances; no speed.
        self.assertEqual(shapes.count("<circle"), 4 + 2 * 2)
        self.assertEqual(shapes.count('font-weight="bold"'), 2)


class TableTest(FolderTest):
    def test_where_a_kind_becomes_faster(self):
        def point(kind, context, value=None, status="measured"):
            point = {"shape": "s", "attention": kind, "measure": "prefill", "context": context, "status": status}
            return point | ({} if value is None else {"us_per_token": value})

        points = [point("softmax", 512, 10), point("softmax", 1024, 20), point("softmax", 2048, status="too slow")]
        points += [point("linear", 512, 12.34), point("linear", 1024, 12.5), point("linear", 2048, 1234.5)]
        points += [point("random_sketch", 1024, 19), point("random_sketch", 2048, status="too slow")]
        points += [point("performer", 512, 5), point("performer", 1024, 5), point("performer", 2048, status="out of memory")]
        (self.dir / "figures.json").write_text(json.dumps({"points": points}))
        command = [support.ROOT / "bench/figures-table", self.dir / "figures.json"]
        printed = subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.splitlines()
        self.assertEqual(printed[0], "s, prefill, us a token by context:")
        self.assertEqual(
            printed[2:8],
            [
                "| kind | 512 | 1,024 | 2,048 | faster than softmax from |",
                "| --- | --- | --- | --- | --- |",
                "| softmax | 10 | 20 | too slow |  |",
                "| linear | 12.3 | 12.5 | 1,234 | 1,024 |",
                "| random_sketch |  | 19 | too slow | 1,024 |",
                "| performer | 5 | 5 | out of memory | 512 |",
            ],
        )


if __name__ == "__main__":
    unittest.main()
