"""Every panel of every dashboard, every recording rule, every alert and every query of the autoscaler, asked of a real
Prometheus that scrapes the real server under load: each must return data. An alert's does with its final comparison taken
off."""

import json
import math
import re
import subprocess
import threading
import unittest

import yaml
from support import BIN, DEPLOY, ROOT, DeployTest, http_get, query, wait_until


def dashboard_expressions():
    for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                yield f"{path.name}, {panel['title']}", target["expr"]


def rules():
    for path in sorted((DEPLOY / "prometheus/rules").glob("*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            yield from group["rules"]


def autoscaler_queries():
    path = DEPLOY / "kubernetes/components/autoscaling-keda/scaledobject.yaml"
    for trigger in yaml.safe_load(path.read_text())["spec"]["triggers"]:
        query_text = trigger["metadata"]["query"]
        assert query_text.count('{namespace="polysketch"}') == 1, query_text
        yield path.name, query_text.replace('{namespace="polysketch"}', "")  # a label of clusters


def adapter_queries():
    path = DEPLOY / "kubernetes/components/autoscaling-hpa/adapter-rules.yaml"
    for rule in yaml.safe_load(path.read_text())["rules"]["external"]:
        yield path.name, rule["seriesQuery"]
        yield path.name, rule["metricsQuery"].replace("<<.LabelMatchers>>", 'job="polysketch"')


def resolved(expression):
    """As Grafana fills in its variables, everything chosen."""
    return (
        expression.replace("$__rate_interval", "1m")
        .replace("$job", ".*")
        .replace("$instance", ".*")
    )


def without_comparisons(alert):
    """The operands of an alert's `and`, each without its comparison."""
    for operand in re.split(r"^and ", alert.strip(), flags=re.MULTILINE):
        left, comparison = re.subn(r"\s(>|<|==|>=|<=|!=)\s[^<>=]*$", "", operand.strip())
        assert comparison == 1, f"an alert's operand that is no comparison: {operand}"
        yield left


class Live(DeployTest):
    def load(self, server, stop):
        """Mixed requests from several clients until told to stop, a few of them bad."""
        bad = {"max-tokens": "-1"}

        def client(number):
            for turn in range(10**6):
                if stop.is_set():
                    return
                options = bad if (number + turn) % 10 == 0 else {"max-tokens": str(5 + 20 * number)}
                flags = [part for name, value in options.items() for part in (f"--{name}", value)]
                subprocess.run(
                    [BIN / "polysketch", "--server", server, "complete"]
                    + ["--prompt", "It was late in the afternoon " * (1 + turn % 5), *flags],
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    check=False,
                )

        def client_says(*command):
            said = subprocess.run(
                [BIN / "polysketch", "--server", server, *command, "--json"],
                capture_output=True,
                check=False,
            )
            return json.loads(said.stdout) if said.returncode == 0 else {}

        def sessions():
            """Into the store and out of it again."""
            while not stop.is_set():
                made = client_says("session", "create", "--durable").get("session", "")
                turn = ["complete", "--prompt", "It was", "--max-tokens", "4", "--session"]
                client_says(*turn, made)
                key = client_says("session", "snapshot", made).get("snapshot", "")
                restored = client_says("session", "restore", key).get("session", "")
                client_says(*turn, restored)
                for name in (made, key, restored):
                    client_says("session", "delete", name)

        threads = [threading.Thread(target=client, args=(number,)) for number in range(3)]
        threads.append(threading.Thread(target=sessions))
        for thread in threads:
            thread.start()
        self.addCleanup(lambda: [stop.set(), *(thread.join() for thread in threads)])

    def test_every_expression_returns_data(self):
        # Memory for no session: each is written to the store and read from it.
        store = ["--state-store", f"dir:{self.dir}/states", "--state-store-limit", "1GiB", "--session-memory", "1"]
        _, ready = self.start_server("--max-sequences", "2", *store)
        prometheus = self.start_prometheus(ready["metrics"])
        self.load(ready["listen"], threading.Event())

        expressions = [(where, resolved(expression)) for where, expression in dashboard_expressions()]
        self.assertGreater(len(expressions), 50)
        expressions += [*autoscaler_queries(), *adapter_queries()]
        for rule in rules():
            if "record" in rule:
                expressions.append((rule["record"], rule["record"]))
                expressions.append((rule["record"], rule["expr"]))
            else:
                expressions += [(rule["alert"], left) for left in without_comparisons(rule["expr"])]

        def without_data():
            missing = []
            for where, expression in expressions:
                values = query(prometheus, expression)
                if isinstance(values, str):
                    raise AssertionError(f"{where}: {expression}: {values}")
                if all(math.isnan(value) for value in values):
                    missing.append(f"{where}: {expression}")
            return missing

        # A rate needs two scrapes and an event between them, a recording rule an evaluation after that.
        missing = []

        def complete():
            missing[:] = without_data()
            return not missing

        page = http_get(f"http://{ready['metrics']}/metrics")
        promtool = ROOT / ".deps/bin/promtool"
        said = subprocess.run([promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False)
        # prometheus-cpp's own, of the scrapes themselves, lacks the unit that promtool would like, and colons are for rules.
        others = ("exposer_", "vllm:")
        objections = [line for line in said.stderr.splitlines() if not line.startswith(others)]
        self.assertEqual(objections, [])

        try:
            wait_until(complete, "data", patience=30)
        except AssertionError:
            self.fail("no data from:\n" + "\n".join(missing))


if __name__ == "__main__":
    unittest.main()
