"""docs/operations.md and docs/metrics.md know every flag, alert and metric that there is, and no others."""

import pathlib
import re
import subprocess
import unittest

import yaml
from support import BIN, DEPLOY, ROOT, DeployTest, http_get

OPERATIONS = (ROOT / "docs/operations.md").read_text()
METRICS = (ROOT / "docs/metrics.md").read_text()
RULES = "".join(path.read_text() for path in sorted((DEPLOY / "prometheus/rules").glob("*.yml")))
ADAPTER = (DEPLOY / "kubernetes/components/autoscaling-hpa/adapter-rules.yaml").read_text()
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
GROUPS = set(re.findall(r"- name: (\w+)", RULES))  # of rules


def flags_of(program, *command):
    said = subprocess.run([BIN / program, *command, "--help"], capture_output=True, text=True, check=True)
    return re.findall(r"^  --([a-z-]+)", said.stdout, flags=re.MULTILINE)


class Operations(DeployTest):
    def test_every_flag(self):
        flags = flags_of("polysketch-server")
        self.assertGreater(len(flags), 30)
        for flag in flags:
            if flag in ("help", "version"):
                continue
            family = flag.split("-")[0]  # `--keepalive-*`
            named = re.search(rf"--{flag}[^a-z-]", OPERATIONS) or f"`--{family}-*`" in OPERATIONS
            self.assertTrue(named, f"--{flag}")

    def test_no_flag_that_is_not(self):
        known = set(flags_of("polysketch-server") + flags_of("polysketch-loadgen"))
        said = subprocess.run([BIN / "polysketch", "--help"], capture_output=True, text=True, check=True)
        commands = re.findall(r"^  ([a-z]+) ", said.stdout, flags=re.MULTILINE)
        self.assertIn("complete", commands)
        for command in commands:
            known.update(flags_of("polysketch", command))
        for action in ("create", "append"):
            known.update(flags_of("polysketch", "session", action))
        known.update(("now", "pids-limit"))  # of systemctl and of containers
        named = set(re.findall(r"(?<![\w-])--([a-z]+(?:-[a-z]+)*)(?!-?\*|-?[a-z])", OPERATIONS))
        self.assertGreater(len(named), 30)
        self.assertEqual(named - known, set())

    def test_every_environment_variable(self):
        """Those of flags are --help's; the others are in the source."""
        flags = {"POLYSKETCH_" + flag.upper().replace("-", "_") for flag in flags_of("polysketch-server")}
        named = set(re.findall(r"\bPOLYSKETCH_[A-Z_]+\b", OPERATIONS))
        self.assertGreater(len(named), 0)
        source = "".join(
            path.read_text()
            for folder in ("server", "engine", "kernels")
            for path in (ROOT / folder).rglob("*.c[cu]*")
        )
        for name in named - flags:
            self.assertIn(f'"{name}"', source)

    def test_every_alert_and_where_it_sends_people(self):
        count = 0
        for path in (DEPLOY / "prometheus/rules").glob("*.yml"):
            for group in yaml.safe_load(path.read_text())["groups"]:
                for rule in group["rules"]:
                    if "alert" not in rule:
                        continue
                    count += 1
                    self.assertIn(f"### {rule['alert']}\n", OPERATIONS)
                    anchor = f"docs/operations.md#{rule['alert'].lower()}"
                    self.assertEqual(rule["annotations"]["runbook"], anchor)
        self.assertGreater(count, 8)

    def test_every_alert_has_a_test_that_fires_and_one_that_does_not(self):
        fired, silent = set(), set()
        for path in (DEPLOY / "prometheus/tests").glob("*.yml"):
            for case in yaml.safe_load(path.read_text())["tests"]:
                for expectation in case.get("alert_rule_test", []):
                    (fired if expectation["exp_alerts"] else silent).add(expectation["alertname"])
        alerts = set(re.findall(r"^### (Polysketch\w+)$", OPERATIONS, flags=re.MULTILINE))
        self.assertEqual(alerts - fired, set(), "never seen to fire")
        self.assertEqual(alerts - silent, set(), "never seen silent")

    def test_every_metric_of_a_live_server(self):
        _, ready = self.start_server()
        page = http_get(f"http://{ready['metrics']}/metrics")
        types = dict(re.findall(r"^# TYPE (\S+) (\w+)$", page, flags=re.MULTILINE))
        self.assertGreater(len(types), 30)
        for name in types:
            self.assertIn(f"`{name}`", METRICS)
        rows = re.findall(r"^\| `([\w:]+)` \| (\w+) \|", METRICS, flags=re.MULTILINE)
        own = {name: kind for name, kind in types.items() if not name.startswith("exposer_")}
        self.assertEqual(sorted(rows), sorted(own.items()))  # each once, with its type

        # What pages, rules, dashboards and manifests name, there is.
        names = {name + end for name, kind in own.items() if kind == "histogram" for end in ("_bucket", "_sum", "_count")}
        names |= set(own)
        adapted = set(re.findall(r"name: {as: (\w+)}", ADAPTER))
        for text in (OPERATIONS, METRICS, RULES, ADAPTER, *map(pathlib.Path.read_text, DASHBOARDS)):
            named = set(re.findall(r"(?<![:\w])polysketch_\w+", text))  # after a colon: recorded
            self.assertEqual(named - names - adapted - GROUPS, set())


if __name__ == "__main__":
    unittest.main()
