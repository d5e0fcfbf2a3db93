"""docs/operations.md and docs/metrics.md know every flag, alert and metric that there is."""

import re
import subprocess
import unittest

import yaml
from support import BIN, DEPLOY, ROOT, DeployTest, http_get

OPERATIONS = (ROOT / "docs/operations.md").read_text()
METRICS = (ROOT / "docs/metrics.md").read_text()


class Operations(DeployTest):
    def test_every_flag(self):
        text = subprocess.run([BIN / "polysketch-server", "--help"], capture_output=True, text=True, check=True)
        flags = re.findall(r"^  --([a-z-]+)", text.stdout, flags=re.MULTILINE)
        self.assertGreater(len(flags), 30)
        for flag in flags:
            if flag in ("help", "version"):
                continue
            family = flag.split("-")[0]  # `--keepalive-*`
            named = re.search(rf"--{flag}[^a-z-]", OPERATIONS) or f"`--{family}-*`" in OPERATIONS
            self.assertTrue(named, f"--{flag}")

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
        names = re.findall(r"^# TYPE (\S+) ", page, flags=re.MULTILINE)
        self.assertGreater(len(names), 30)
        for name in names:
            self.assertIn(f"`{name}`", METRICS)


if __name__ == "__main__":
    unittest.main()
