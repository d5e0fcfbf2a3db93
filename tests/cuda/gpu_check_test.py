#!/usr/bin/env python3
"""Tests of scripts/gpu-check without a GPU: every command ends with the time limit. The machine's programs are scripts that
are written here."""

import os
import shutil
import subprocess
import tempfile
import time
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../scripts/gpu-check")
HANG = "exec sleep 60"
# A cmake that builds one device test.
BUILD = """case "$1" in --build)
  mkdir -p build/gpu/bin
  printf '#!/bin/sh\\n{}\\n' >build/gpu/bin/device_ops_test
  chmod +x build/gpu/bin/device_ops_test;;
esac"""
# A cmake that builds the kernel benchmark.
BUILD_BENCH = """case "$1" in --build)
  mkdir -p build/gpu/bin
  cat >build/gpu/bin/polysketch-cuda-bench <<'END'
#!/bin/sh
{}
END
  chmod +x build/gpu/bin/polysketch-cuda-bench;;
esac"""
# What each program does: shell code, with its arguments in "$*".
MACHINE = {
    "nvcc": "true",
    "nvidia-smi": 'case "$*" in *compute_cap*) echo 9.0;; *) echo "a GPU";; esac',
    "cmake": "true",
    "python3": "true",
}


class GpuCheckTest(unittest.TestCase):
    def run_script(self, mode, programs, limit=3, arguments=()):
        """The script's exit status, output and seconds on a machine with these programs in place of MACHINE."""
        with tempfile.TemporaryDirectory() as folder:
            os.mkdir(os.path.join(folder, "scripts"))
            shutil.copy(SCRIPT, os.path.join(folder, "scripts/gpu-check"))
            tools = os.path.join(folder, "tools")
            os.mkdir(tools)
            for name, code in {**MACHINE, **programs}.items():
                path = os.path.join(tools, name)
                with open(path, "w", encoding="utf-8") as file:
                    file.write(f"#!/bin/sh\n{code}\n")
                os.chmod(path, 0o755)
            environment = {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", "GPU_CHECK_LIMIT": str(limit),
                           "GPU_CHECK_MODEL": "model"}
            environment.pop("OUT", None)
            start = time.monotonic()
            ended = subprocess.run([os.path.join(folder, "scripts/gpu-check"), mode, *arguments], env=environment, check=False, timeout=50,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            return ended.returncode, ended.stdout, time.monotonic() - start

    def expect_stopped(self, mode, programs, message):
        status, output, seconds = self.run_script(mode, programs)
        self.assertEqual(status, 1, output)
        self.assertIn(message, output)
        self.assertLess(seconds, 20, output)

    def test_a_device_that_is_not_named_ends_the_script(self):
        status, output, _ = self.run_script("correctness", {"nvidia-smi": "echo no device >&2; exit 9"}, limit=30)
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED: nvidia-smi", output)

    def test_configuring_that_hangs_is_stopped(self):
        self.expect_stopped("correctness", {"cmake": HANG}, "FAILED: configure did not end within 3 s")

    def test_a_build_that_hangs_is_stopped(self):
        self.expect_stopped("correctness", {"cmake": f'case "$1" in --build) {HANG};; esac'},
                            "FAILED: build did not end within 3 s")

    def test_a_failed_build_ends_the_script(self):
        status, output, _ = self.run_script("correctness", {"cmake": 'case "$1" in --build) exit 3;; esac'}, limit=30)
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED: build\n", output)
        self.assertNotIn("device tests", output)

    def test_a_failed_configuration_shows_its_log(self):
        status, output, _ = self.run_script("correctness", {"cmake": "echo no compiler; exit 3"}, limit=30)
        self.assertEqual(status, 1, output)
        self.assertIn("no compiler", output)

    def test_ceilings_that_hang_are_stopped(self):
        self.expect_stopped("ceilings", {"python3": f'case "$*" in *--ceiling*) {HANG};; esac'}, "FAILED: product ceiling\n")
        self.expect_stopped("ceilings", {"cmake": BUILD_BENCH.format(HANG)}, "FAILED: bandwidth and latencies\n")

    def test_shares_refer_to_the_ceilings(self):
        bench = 'case "$1" in --ceilings) echo "largest bandwidth of a kernel: 4321 GB/s";; *) echo "measured with $*";; esac'
        for torch, product in (("exit 1", "0"), ('case "$*" in *--ceiling*) echo 798.5;; esac', "798.5")):
            programs = {"cmake": BUILD_BENCH.format(bench), "python3": torch}
            _, output, _ = self.run_script("benchmarks", programs, limit=30)
            self.assertIn(f"measured with 4321 {product}\n", output)

    def test_a_device_that_does_not_answer_is_stopped(self):
        self.expect_stopped("correctness", {"nvidia-smi": f'case "$*" in *compute_cap*) echo 9.0;; *) {HANG};; esac'},
                            "FAILED: nvidia-smi\n")

    def test_a_server_that_hangs_is_stopped(self):
        self.expect_stopped("server", {"python3": f'case "$*" in *bench/serving*) {HANG};; esac'}, "FAILED: bench/serving\n")

    def test_the_server_on_a_cpu_asks_for_no_gpu(self):
        programs = {"nvidia-smi": "exit 9", "nvcc": "exit 9", "python3": 'case "$*" in *bench/serv*) echo "python3 $*";; esac'}
        for device in ("--device=cpu",), ("--device", "cpu"):
            status, output, _ = self.run_script("server", programs, limit=30, arguments=device)
            self.assertEqual(status, 0, output)
            self.assertRegex(output, f"python3 -B bench/serving .* {' '.join(device)}\n")
            self.assertNotIn("--floor", output)

    def test_the_server_on_a_gpu_has_a_floor(self):
        programs = {"python3": 'case "$*" in *bench/serv*) echo "python3 $*";; esac'}
        status, output, _ = self.run_script("server", programs, limit=30)
        self.assertEqual(status, 0, output)
        self.assertIn("--device cuda --floor 0.95", output)

    def test_a_server_below_its_floor_fails(self):
        status, output, _ = self.run_script("server", {"python3": 'case "$*" in *bench/serving*) exit 1;; esac'}, limit=30)
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED: bench/serving\n", output)

    def test_packing_something_unknown_is_refused(self):
        status, output, _ = self.run_script("pack", {}, arguments=["sever"])
        self.assertEqual(status, 2, output)
        self.assertIn("expected nothing or server, found sever", output)

    def test_what_follows_without_time_is_named(self):
        self.expect_stopped("correctness", {"cmake": BUILD.format(HANG)},
                            "FAILED: device_ops_test with the portable products: no time was left\n")

    def test_a_build_without_tests_fails(self):
        status, output, _ = self.run_script("correctness", {}, limit=30)
        self.assertEqual(status, 1, output)
        self.assertIn("FAILED: device tests: none in build/gpu/bin\n", output)


if __name__ == "__main__":
    unittest.main()
