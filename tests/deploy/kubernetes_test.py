"""The manifests of deploy/kubernetes: built by kustomize, checked against schemas without a network, and their numbers
against each other and against the real server."""

import copy
import functools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import unittest

import jsonschema
import kubernetes_validate
import yaml
from support import BIN, DEPLOY, ROOT, DeployTest

KUBERNETES = DEPLOY / "kubernetes"
SCHEMAS = pathlib.Path(__file__).resolve().parent / "schemas"
VERSION = "1.33"  # of the schemas of Kubernetes' own kinds
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
WORKLOADS = ("Deployment", "StatefulSet")
GOODBYE_SECONDS = 2  # kGoodbye in server/app/server.cc: for last messages, after the drain
SPARE_SECONDS = 5


@functools.cache
def kustomize():
    """The command that builds a folder, or None. kubectl has it from 1.14 on, with what we use from 1.27 on."""
    if shutil.which("kustomize"):
        return ("kustomize", "build")
    if shutil.which("kubectl"):
        said = subprocess.run(
            ["kubectl", "version", "--client", "-o", "json"], capture_output=True, check=False
        )
        version = json.loads(said.stdout or "{}").get("clientVersion", {})
        if (int(version.get("major", 0)), int(re.sub(r"\D", "", version.get("minor", "0")))) >= (1, 27):
            return ("kubectl", "kustomize")
    return None


@functools.cache
def built(overlay):
    done = subprocess.run(
        [*kustomize(), KUBERNETES / "overlays" / overlay], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def one(objects, kind, name=None):
    found = [o for o in objects if o["kind"] == kind and name in (None, o["metadata"]["name"])]
    assert len(found) == 1, f"{len(found)} of {kind} {name}"
    return found[0]


def validate(manifest):
    """Raises unless a manifest fits the schema of its kind; fields that are not in it are errors."""
    schema = SCHEMAS / f"{manifest['kind']}.json"
    if schema.exists():
        jsonschema.validate(manifest, json.loads(schema.read_text()))
    else:
        kubernetes_validate.validate(manifest, VERSION, strict=True)


def workload(objects):
    (found,) = [o for o in objects if o["kind"] in WORKLOADS and o["metadata"]["name"] == "polysketch"]
    return found


def server_of(objects):
    pod = workload(objects)["spec"]["template"]["spec"]
    return pod, next(c for c in pod["containers"] if c["name"] == "server")


def environment_of(objects):
    """The flags of the server, from the config map that its container reads."""
    _, server = server_of(objects)
    (name,) = [source["configMapRef"]["name"] for source in server["envFrom"]]
    return one(objects, "ConfigMap", name)["data"]


def seconds(text):
    number, unit = re.fullmatch(r"(\d+)(ms|s|m|h)", text).groups()
    return int(number) * {"ms": 0.001, "s": 1, "m": 60, "h": 3600}[unit]


def mebibytes(text):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


class Files(unittest.TestCase):
    """What can be said without kustomize."""

    def test_every_file_is_a_legal_manifest(self):
        patches = {
            folder.parent / patch["path"]
            for folder in KUBERNETES.rglob("kustomization.yaml")
            for patch in yaml.safe_load(folder.read_text()).get("patches", [])
        }
        self.assertGreater(len(patches), 1)  # what they make is checked in the overlays
        count = 0
        for path in sorted(set(KUBERNETES.rglob("*.yaml")) - patches):
            if path.name in ("kustomization.yaml", "adapter-rules.yaml"):
                continue
            for manifest in yaml.safe_load_all(path.read_text()):
                with self.subTest(path=str(path.relative_to(ROOT)), kind=manifest["kind"]):
                    validate(manifest)
                count += 1
        self.assertGreater(count, 8)

    def test_a_wrong_field_is_refused(self):
        deployment = yaml.safe_load((KUBERNETES / "base/deployment.yaml").read_text())
        misspelled = copy.deepcopy(deployment)
        misspelled["spec"]["template"]["spec"]["terminationGracePeriodSecond"] = 1
        wrong_type = copy.deepcopy(deployment)
        wrong_type["spec"]["replicas"] = "two"
        monitor = yaml.safe_load((KUBERNETES / "components/monitoring/podmonitor.yaml").read_text())
        monitor["spec"]["podMetricsEndpoint"] = []
        for manifest in (misspelled, wrong_type, monitor):
            with self.assertRaises((jsonschema.ValidationError, kubernetes_validate.ValidationError)):
                validate(manifest)

    def test_the_rules_are_those_of_deploy_prometheus(self):
        done = subprocess.run(
            [sys.executable, KUBERNETES / "update-rules", "--check"], capture_output=True, check=False
        )
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_the_adapter_knows_the_metrics_of_the_autoscaler(self):
        folder = KUBERNETES / "components/autoscaling-hpa"
        asked = {
            metric["external"]["metric"]["name"]
            for metric in yaml.safe_load((folder / "hpa.yaml").read_text())["spec"]["metrics"]
        }
        rules = yaml.safe_load((folder / "adapter-rules.yaml").read_text())["rules"]["external"]
        self.assertEqual(asked, {rule["name"]["as"] for rule in rules})


def for_each_overlay(test):
    """Calls a test with the objects of every overlay."""

    @functools.wraps(test)
    def run(self):
        for overlay in OVERLAYS:
            with self.subTest(overlay=overlay):
                test(self, built(overlay))

    return run


@unittest.skipUnless(kustomize(), "no kustomize, and no kubectl of 1.27 or newer")
class Overlays(DeployTest):
    @for_each_overlay
    def test_they_validate(self, objects):
        for manifest in objects:
            with self.subTest(kind=manifest["kind"], name=manifest["metadata"]["name"]):
                validate(manifest)
                if manifest["kind"] != "Namespace":
                    self.assertEqual(manifest["metadata"].get("namespace"), "polysketch")

    @for_each_overlay
    def test_times_agree(self, objects):
        """The grace period covers the preStop wait and the drain; probes give up in the right order."""
        pod, server = server_of(objects)
        drain = seconds(environment_of(objects)["POLYSKETCH_DRAIN_TIMEOUT"])
        command = server["lifecycle"]["preStop"]["exec"]["command"]
        self.assertEqual(command[0], "/bin/sleep")
        stopping = int(command[1])
        grace = pod["terminationGracePeriodSeconds"]
        self.assertGreaterEqual(grace, stopping + drain + GOODBYE_SECONDS + SPARE_SECONDS)

        scheme = {"scheme": "HTTPS"} if "POLYSKETCH_TLS_CERT" in environment_of(objects) else {}

        def patience(name):
            probe = server[name]
            path = "/healthz" if name == "livenessProbe" else "/readyz"
            self.assertEqual(probe["httpGet"], {"path": path, "port": "http"} | scheme)
            return probe["periodSeconds"] * probe["failureThreshold"]

        # Endpoints learn of it by preStop's wait, which also covers the readiness probe.
        self.assertLessEqual(patience("readinessProbe"), stopping)
        # A drain is NOT_SERVING, and no reason to be killed.
        self.assertGreaterEqual(patience("livenessProbe"), grace)
        # A model of 100 GB from a disk of 200 MB/s.
        self.assertGreaterEqual(patience("startupProbe"), 100e9 / 200e6)

    @for_each_overlay
    def test_pods_fit_the_restricted_profile(self, objects):
        pods = [o["spec"]["template"]["spec"] for o in objects if o["kind"] in WORKLOADS]
        for pod in pods:
            self.assertTrue(pod["securityContext"]["runAsNonRoot"])
            self.assertEqual(pod["securityContext"]["seccompProfile"], {"type": "RuntimeDefault"})
            self.assertFalse(pod["automountServiceAccountToken"])
            for key in ("hostNetwork", "hostPID", "hostIPC"):
                self.assertNotIn(key, pod)
            for volume in pod.get("volumes", []):
                self.assertNotIn("hostPath", volume)
            for container in pod["containers"] + pod.get("initContainers", []):
                context = container["securityContext"]
                self.assertFalse(context["allowPrivilegeEscalation"])
                self.assertTrue(context["readOnlyRootFilesystem"])
                self.assertEqual(context["capabilities"], {"drop": ["ALL"]})
                for resource in ("cpu", "memory"):
                    self.assertIn(resource, container["resources"]["requests"])
        namespace = one(objects, "Namespace")
        self.assertEqual(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted")

    @for_each_overlay
    def test_selectors_and_references_find_something(self, objects):
        labels = [o["spec"]["template"]["metadata"]["labels"] for o in objects if o["kind"] in WORKLOADS]
        ports = {port["name"] for port in server_of(objects)[1]["ports"]}

        def selects(selector):
            return any(selector.items() <= pod.items() for pod in labels)

        for o in objects:
            spec = o.get("spec", {})
            if o["kind"] == "Service":
                self.assertTrue(selects(spec["selector"]), o["metadata"]["name"])
            elif o["kind"] in ("PodDisruptionBudget", "PodMonitor"):
                self.assertTrue(selects(spec["selector"]["matchLabels"]))
                for endpoint in spec.get("podMetricsEndpoints", []):
                    self.assertIn(endpoint["port"], ports)
            elif o["kind"] == "NetworkPolicy":
                self.assertTrue(selects(spec["podSelector"]["matchLabels"]), o["metadata"]["name"])
            elif o["kind"] in ("HorizontalPodAutoscaler", "ScaledObject"):
                target = spec["scaleTargetRef"]
                one(objects, target.get("kind", "Deployment"), target["name"])
        autoscalers = [o for o in objects if o["kind"] in ("HorizontalPodAutoscaler", "ScaledObject")]
        self.assertLessEqual(len(autoscalers), 1)
        claims = {o["metadata"]["name"] for o in objects if o["kind"] == "PersistentVolumeClaim"}
        for volume in server_of(objects)[0].get("volumes", []):
            if "persistentVolumeClaim" in volume:
                self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)

    @for_each_overlay
    def test_ports_lead_from_clients_to_the_server(self, objects):
        """Services, container ports, the addresses of the server and the policy name the same ports."""
        pod, server = server_of(objects)
        edge = any(container["name"] == "edge" for container in pod["containers"])
        entry = re.search(r"(?m)^ENTRYPOINT (.*)$", (DEPLOY / "docker/Dockerfile").read_text())[1]
        flags = server["args"] if "command" in server else re.sub(r'(--[a-z-]+)", "', r"\1=", entry)
        listens = {int(port) for port in re.findall(r"-listen=0\.0\.0\.0:(\d+)", str(flags))}
        self.assertEqual(listens, {port["containerPort"] for port in server["ports"]})
        self.assertEqual(listens, {8000, 9464} if edge else {50051, 8000, 9464})

        named = {port["name"]: port["containerPort"] for container in pod["containers"] for port in container["ports"]}
        reached = set()
        for service in ("polysketch", "polysketch-headless"):
            ports = one(objects, "Service", service)["spec"]["ports"]
            self.assertEqual([port["port"] for port in ports], [50051, 8000])
            reached |= {named[port["targetPort"]] for port in ports}
            encrypted = edge or "POLYSKETCH_TLS_CERT" in environment_of(objects)
            for port, plain in zip(ports, ("kubernetes.io/h2c", "http"), strict=True):
                self.assertEqual(port["appProtocol"], "https" if encrypted else plain)
        self.assertEqual(reached, {8443} if edge else {50051, 8000})

        # What any pod but Prometheus may reach is what the Services lead to: nothing goes around the edge.
        allowed = set()
        for policy in (o for o in objects if o["kind"] == "NetworkPolicy"):
            if policy["spec"]["podSelector"]["matchLabels"] != {"app.kubernetes.io/name": "polysketch"}:
                continue
            for rule in policy["spec"]["ingress"]:
                if "monitoring" not in str(rule.get("from")):
                    allowed |= {port["port"] for port in rule["ports"]}
        self.assertEqual(allowed, reached)

    @for_each_overlay
    def test_flags_are_the_servers(self, objects):
        text = subprocess.run([BIN / "polysketch-server", "--help"], capture_output=True, text=True, check=True)
        known = {
            "POLYSKETCH_" + name.upper().replace("-", "_")
            for name in re.findall(r"^  --([a-z-]+) ", text.stdout, flags=re.MULTILINE)
        }
        self.assertGreater(len(known), 20)
        self.assertLessEqual(set(environment_of(objects)), known)

    @for_each_overlay
    def test_credentials_are_mounted(self, objects):
        """Every file that a flag names is in a Secret, on a read-only mount; nothing is insecure."""
        pod, server = server_of(objects)
        environment = environment_of(objects)
        self.assertNotIn("POLYSKETCH_INSECURE", environment)
        self.assertNotIn("--insecure", server["args"])
        mounts = {mount["mountPath"]: mount for mount in server["volumeMounts"]}
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        files = [environment[name] for name in ("POLYSKETCH_API_KEYS", "POLYSKETCH_TLS_CERT", "POLYSKETCH_TLS_KEY")
                 if name in environment]
        self.assertIn("POLYSKETCH_API_KEYS", environment)
        for file in files:
            mount = mounts[str(pathlib.PurePosixPath(file).parent)]
            self.assertTrue(mount["readOnly"])
            self.assertIn("secretName", volumes[mount["name"]]["secret"])

    def test_the_edge_has_the_address_of_the_server(self):
        """deploy/haproxy: the socket, the HTTP port and the limits that haproxy.cfg names are the server's."""
        objects = built("edge")
        pod, server = server_of(objects)
        edge = next(c for c in pod["containers"] if c["name"] == "edge")
        text = (DEPLOY / "haproxy/haproxy.cfg").read_text()
        (name,) = [volume["configMap"]["name"] for volume in pod["volumes"] if volume["name"] == "edge"]
        self.assertEqual(one(objects, "ConfigMap", name)["data"]["haproxy.cfg"], text)
        path = re.search(r"presetenv EDGE_GRPC unix@(\S+)", text)[1]
        self.assertIn(f"--listen=unix:{path}", server["args"])
        for container in (server, edge):
            self.assertIn({"name": "run", "mountPath": str(pathlib.PurePosixPath(path).parent)}, container["volumeMounts"])
        port = re.search(r"presetenv EDGE_HTTP 127.0.0.1:(\d+)", text)[1]
        self.assertIn(f"--http-listen=0.0.0.0:{port}", server["args"])
        self.assertIn({"name": "EDGE_BIND", "value": ":8443"}, edge["env"])
        self.assertIn({"name": "edge", "containerPort": 8443}, edge["ports"])
        for flag in ("max-connections", "max-calls"):
            value = environment_of(objects)["POLYSKETCH_" + flag.upper().replace("-", "_")]
            self.assertIn(f"--{flag} {value}", text)
        for service in ("polysketch", "polysketch-headless"):
            for port in one(objects, "Service", service)["spec"]["ports"]:
                self.assertEqual(port["targetPort"], "edge")

    def test_states_fit_their_volume(self):
        objects = built("sessions-volume")
        limit = mebibytes(environment_of(objects)["POLYSKETCH_STATE_STORE_LIMIT"].removesuffix("B"))
        claim = one(objects, "PersistentVolumeClaim", "polysketch-states")["spec"]["resources"]["requests"]["storage"]
        self.assertLessEqual(limit, 0.95 * mebibytes(claim))

    def test_memory_is_what_the_server_says(self):
        """The cpu overlay's flags and model, given to the real server: what its log adds up fits what the pod asks for."""
        objects = built("cpu")
        keys = self.dir / "keys.jsonl"
        keys.write_text(json.dumps({"name": "app", "sha256": "0" * 64, "tenant": "app"}))
        environment = environment_of(objects)
        model = ROOT / environment["POLYSKETCH_MODEL"].lstrip("/")
        self.start_server(environment=environment | {"POLYSKETCH_MODEL": str(model), "POLYSKETCH_API_KEYS": str(keys)})
        log = (self.dir / "server.log").read_text()
        total = float(re.search(r"memory .*total_mib=([0-9.]+)", log).group(1))
        resources = server_of(objects)[1]["resources"]
        overhead = 64  # libraries, buffers of connections, logs
        self.assertGreaterEqual(mebibytes(resources["requests"]["memory"]), total + overhead)
        self.assertGreaterEqual(mebibytes(resources["limits"]["memory"]), 2 * (total + overhead))


if __name__ == "__main__":
    unittest.main()
