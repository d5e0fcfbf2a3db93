"""What of compose and Grafana can be checked without starting them: that files say what they mean to each other."""

import json
import re
import unittest

import yaml
from support import DEPLOY

COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
# Of the compose specification, what a service here may have: a misspelled key is none of them.
SERVICE_KEYS = {
    *("build", "image", "command", "environment", "volumes", "ports", "depends_on", "restart"),
    *("stop_grace_period", "read_only", "cap_drop", "security_opt", "healthcheck", "tmpfs", "user"),
}


def mounts(service):
    """Container's path -> path on this machine, of the bind mounts."""
    found = {}
    for volume in service.get("volumes", []):
        volume = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", volume)
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = (DEPLOY / source).resolve()
    return found


class Compose(unittest.TestCase):
    def test_keys_and_references(self):
        self.assertLessEqual(set(COMPOSE), {"name", "services", "volumes"})
        for name, service in COMPOSE["services"].items():
            with self.subTest(service=name):
                self.assertLessEqual(set(service), SERVICE_KEYS)
                self.assertLessEqual(set(service.get("depends_on", [])), set(COMPOSE["services"]))
                self.assertEqual(service["cap_drop"], ["ALL"])
                for path in mounts(service).values():
                    self.assertTrue(path.exists(), path)
                for port in service["ports"]:
                    self.assertRegex(port, r"^127\.0\.0\.1:\d+:\d+$", "not for the network")

    def test_the_server_is_built_from_this_tree_and_may_drain(self):
        server = COMPOSE["services"]["server"]
        context = (DEPLOY / server["build"]["context"]).resolve()
        self.assertTrue((context / server["build"]["dockerfile"]).exists())
        drain = re.fullmatch(r"(\d+)s", server["command"][server["command"].index("--drain-timeout") + 1])
        grace = re.fullmatch(r"(\d+)s", server["stop_grace_period"])
        # Two seconds for last messages (kGoodbye in server/app/server.cc), and some to spare.
        self.assertGreaterEqual(int(grace[1]), int(drain[1]) + 2 + 5)
        self.assertTrue(server["read_only"])

    def test_prometheus_scrapes_the_server(self):
        config = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())
        targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
        self.assertEqual(targets["polysketch"], ["server:9464"])
        self.assertIn("EXPOSE 50051 8000 9464", (DEPLOY / "docker/Dockerfile").read_text())

    def test_the_server_has_grpc_and_the_apis_over_http(self):
        self.assertEqual(
            sorted(COMPOSE["services"]["server"]["ports"]), ["127.0.0.1:50051:50051", "127.0.0.1:8000:8000"]
        )

    def test_grafana_finds_prometheus_and_the_dashboards(self):
        grafana = mounts(COMPOSE["services"]["grafana"])
        provisioning = grafana["/etc/grafana/provisioning"]
        sources = yaml.safe_load((provisioning / "datasources/prometheus.yml").read_text())["datasources"]
        self.assertEqual(sources[0]["url"], "http://prometheus:9090")
        providers = yaml.safe_load((provisioning / "dashboards/polysketch.yml").read_text())["providers"]
        self.assertIn(providers[0]["options"]["path"], grafana)


class Edge(unittest.TestCase):
    """deploy/haproxy/compose.yaml."""

    def test_the_edge_has_the_addresses_of_the_server(self):
        folder = DEPLOY / "haproxy"
        services = yaml.safe_load((folder / "compose.yaml").read_text())["services"]
        text = (folder / "haproxy.cfg").read_text()
        path = re.search(r"presetenv EDGE_GRPC unix@(\S+)", text)[1]
        http = re.search(r"presetenv EDGE_HTTP (\S+)", text)[1]
        flags = services["server"]["command"]
        for flag in (f"--listen=unix:{path}", f"--http-listen={http}"):
            self.assertIn(flag, flags)
        for flag in ("max-connections", "max-calls"):
            (value,) = [one.partition("=")[2] for one in flags if one.startswith(f"--{flag}=")]
            self.assertIn(f"--{flag} {value}", text)
        self.assertEqual(services["edge"]["network_mode"], "service:server")
        self.assertEqual(services["server"]["ports"], ["443:8443"])
        self.assertIn("ENV EDGE_BIND=:8443", (folder / "Dockerfile").read_text())
        for service in services.values():
            self.assertIn(f"run:{path.rpartition('/')[0]}", service["volumes"])
            self.assertEqual((service["read_only"], service["cap_drop"]), (True, ["ALL"]))
            self.assertTrue((folder / service["build"]["context"] / service["build"].get("dockerfile", "Dockerfile")).exists())


class Dashboards(unittest.TestCase):
    def test_they_are_laid_out(self):
        uids = set()
        for path in sorted((DEPLOY / "grafana/dashboards").glob("*.json")):
            dashboard = json.loads(path.read_text())
            with self.subTest(dashboard=path.name):
                self.assertNotIn(dashboard["uid"], uids)
                uids.add(dashboard["uid"])
                variables = {variable["name"] for variable in dashboard["templating"]["list"]}
                self.assertEqual(variables, {"datasource", "job", "instance"})
                taken = set()
                ids = [panel["id"] for panel in dashboard["panels"]]
                self.assertEqual(len(ids), len(set(ids)))
                for panel in dashboard["panels"]:
                    place = panel["gridPos"]
                    cells = {
                        (x, y)
                        for x in range(place["x"], place["x"] + place["w"])
                        for y in range(place["y"], place["y"] + place["h"])
                    }
                    self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
                    self.assertFalse(cells & taken, f"{panel['title']} lies on another panel")
                    taken |= cells
                    for target in panel.get("targets", []):
                        self.assertEqual(target["datasource"]["uid"], "${datasource}")
                        self.assertIn("$job", target["expr"], panel["title"])
        self.assertGreaterEqual(len(uids), 3)


if __name__ == "__main__":
    unittest.main()
