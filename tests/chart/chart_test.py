"""The chart through real Helm 3 and 4: renderings, lint, schemas, policies, refusals, secrets that survive upgrades.

    chart_test.py [--write]     --write renders golden/ anew

Run by ./dev check chart, which brings the tools: TANDEM_HELM ("path path": oldest and newest), TANDEM_KUBECTL, and this
Python with tests/chart/requirements.txt. TANDEM_BUILD is the build folder.
"""
import base64
import glob
import hashlib
import http.server
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import urllib.request

import jsonschema
import kubernetes_validate
import yaml

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
from harness import BUILD, ROOT, SCRATCH, open_get, run, tiny_model  # noqa: E402
from manifest import LocalPods, Manifest, until  # noqa: E402

CHART = os.path.join(ROOT, "deploy", "helm", "tandem")
HELMS = os.environ["TANDEM_HELM"].split()
KUBECTL = os.environ["TANDEM_KUBECTL"]
CASES = sorted(f[:-len("-values.yaml")] for f in os.listdir(os.path.join(CHART, "ci")))
GOLDEN = [c for c in CASES if c != "base"]  # whose golden file is the kustomize base
# Kubernetes versions whose schemas a rendering must satisfy: the oldest that has what it uses, and the newest known.
VERSIONS = {"rdma": ["1.31", "1.37"], "autoscaled": ["1.34", "1.37"]}
ANY_VERSION = ["1.27", "1.37"]
# Policy findings that stand, each with its reason.
ACCEPTED = [
    ("CKV_K8S_43", r".*", "the digest is the operator's to pin: image.digest (the GPU example does)"),
    ("CKV_K8S_15", r".*", "a tag names a release, which does not change; Always would make a registry a condition of a restart"),
    ("CKV_K8S_25", r"-(prefill|decode)-", "RDMA pins memory: IPC_LOCK, where rdma.enabled and rdma.ipcLock"),
    ("CKV_K8S_8", r"Pod\..*-test$", "the pod of helm test ends by itself"),
    ("CKV_K8S_9", r"Pod\..*-test$", "the pod of helm test ends by itself"),
    ("CKV_K8S_35", r"Pod\..*-test$", "the test's API key goes to curl by its configuration file, from the environment"),
]


def call(argv, status=0, **env):
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=dict(os.environ, HELM_NO_PLUGINS="1", **env))
    assert done.returncode == status, (argv, done.returncode, done.stdout[-2000:], done.stderr[-3000:])
    return done.stdout if status == 0 else done.stderr


def values_file(case):
    return os.path.join(CHART, "ci", f"{case}-values.yaml")


def render(helm, case, *args):
    return call([helm, "template", "t", CHART, "-n", "tandem", "-f", values_file(case), *args])


def from_files(doc):
    """Rules and dashboards are copies of files; they have a test of their own."""
    return doc["kind"] == "PrometheusRule" or "-dashboard-" in doc["metadata"]["name"]


def comparable(docs):
    """By (kind, name), without what is random."""
    out = {}
    for d in docs:
        if d["kind"] == "Secret" and d["metadata"]["name"].endswith("-cluster"):
            d = dict(d, data={k: "random" for k in d["data"]})
        if not from_files(d):
            out[d["kind"], d["metadata"]["name"]] = d
    return out


def write_golden():
    for case in GOLDEN:
        docs = [d for d in yaml.safe_load_all(render(HELMS[0], case)) if d and not from_files(d)]
        for d in docs:
            if d["kind"] == "Secret" and d["metadata"]["name"].endswith("-cluster"):
                ids = [k[len("secret."):] for k in d["data"] if k.startswith("secret.")]
                fixed = {f"secret.{i}": base64.b64encode(b"0" * 48).decode() for i in ids}
                lines = "".join(f"{i} {'0' * 48}\n" for i in ids)
                d["data"] = dict(fixed, **{"cluster.key": base64.b64encode(lines.encode()).decode()})
        with open(os.path.join(HERE, "golden", case + ".yaml"), "w", encoding="utf-8") as f:
            f.write(f"# helm template t deploy/helm/tandem -n tandem -f ci/{case}-values.yaml; written by chart_test.py --write.\n")
            f.write("---\n".join(yaml.safe_dump(d, sort_keys=False, width=120) for d in docs))


def test_both_helms_render_what_is_committed():
    for case in GOLDEN:
        golden = comparable(Manifest.load(os.path.join(HERE, "golden", case + ".yaml")).docs)
        for helm in HELMS:
            got = comparable(Manifest(render(helm, case)).docs)
            assert set(got) == set(golden), (case, helm, set(got) ^ set(golden))
            for key in golden:
                assert got[key] == golden[key], f"{case}, {helm}: {key} differs from golden/{case}.yaml; chart_test.py --write"


def test_lint_is_strict_and_silent():
    for helm in HELMS:
        for case in CASES:
            out = call([helm, "lint", "--strict", CHART, "-f", values_file(case)])
            assert "[WARNING]" not in out and "[ERROR]" not in out, out


def test_a_package_renders_the_same_as_the_folder():
    for helm in HELMS:
        folder = tempfile.mkdtemp(dir=SCRATCH)
        call([helm, "package", CHART, "-d", folder])
        package, = os.listdir(folder)
        text = call([helm, "template", "t", os.path.join(folder, package), "-n", "tandem", "-f", values_file("autoscaled")])
        assert comparable(Manifest(text).docs) == comparable(Manifest(render(helm, "autoscaled")).docs)


def custom_schema(kind):
    path = os.path.join(HERE, "crd", kind.lower() + ".json")
    assert os.path.exists(path), f"no schema for {kind}"
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def nulls(node, path=""):
    """Where a template wrote a key and found no value for it."""
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else []
    return ([path] if node is None else []) + [at for key, child in children for at in nulls(child, f"{path}.{key}")]


def as_pods(doc):
    """The pods that a LeaderWorkerSet's templates make: no tool knows them inside of their set."""
    template = doc["spec"].get("leaderWorkerTemplate", {}) if doc["kind"] == "LeaderWorkerSet" else {}
    return [{"apiVersion": "v1", "kind": "Pod", "spec": template[key]["spec"],
             "metadata": dict(template[key]["metadata"], name=f"{doc['metadata']['name']}-{key.lower()}",
                              namespace=doc["metadata"]["namespace"])}
            for key in ("leaderTemplate", "workerTemplate") if key in template]


def satisfies(doc, versions):
    assert not nulls(doc), (doc["kind"], doc["metadata"]["name"], nulls(doc))
    for version in versions:
        try:
            kubernetes_validate.validate(doc, version, strict=True)
        except kubernetes_validate.SchemaNotFoundError:
            jsonschema.validate(doc, custom_schema(doc["kind"]))
        for pod in as_pods(doc):
            kubernetes_validate.validate(pod, version, strict=True)


def test_kubernetes_schemas_accept_every_rendering():
    checked = 0
    for case in CASES:
        for doc in Manifest(render(HELMS[0], case)).docs:
            satisfies(doc, VERSIONS.get(case, ANY_VERSION))
            checked += 1
    assert checked > 100, checked


def test_each_kind_of_workload_takes_a_strategy_of_its_own():
    where = {"Deployment": ("strategy", "maxSurge"), "StatefulSet": ("updateStrategy", "partition"),
             "LeaderWorkerSet": ("rolloutStrategy", "partition")}
    for kind, (key, part) in where.items():
        text = render(HELMS[0], "cpu", "--set", f"decode.kind={kind}", "--set", f"decode.strategy.rollingUpdate.{part}=2")
        doc = Manifest(text).get(kind, "t-tandem-decode")
        satisfies(doc, ANY_VERSION)
        rolling = doc["spec"][key]["rollingUpdate" + ("Configuration" if kind == "LeaderWorkerSet" else "")]
        assert rolling == {part: 2}, (kind, doc["spec"][key])


def test_groups_render_for_every_role_network_and_family():
    rdma = ["kv.transport=rdma", "kv.device=mlx5_0:1", "prefill.rdma.enabled=true", "decode.rdma.enabled=true",
            "decode.hostNetwork=true"]
    standalone = ["standalone.enabled=true", *(g.replace("decode", "standalone") for g in GROUP)]
    for sets in ([*GROUP, *rdma], [*GROUP, "ipFamily=IPv6"], standalone,
                 [*standalone, "kv.transport=rdma", "kv.device=mlx5_0:1", "standalone.rdma.enabled=true"]):
        m = Manifest(render(HELMS[0], "cpu", *(a for s in sets for a in ("--set", s))))
        for doc in m.docs:
            satisfies(doc, ANY_VERSION)
        leader, rank = (w for w in m.workloads() if w.doc["kind"] == "LeaderWorkerSet")
        address = "[$(POD_IP)]" if "ipFamily=IPv6" in sets else "$(POD_IP)"
        assert f"--rank-listen={address}:8102" in leader.container["args"], leader.container["args"]
        assert "--rank-leader=$(LWS_LEADER_ADDRESS):8102" in rank.container["args"], rank.container["args"]
        assert leader.spec.get("hostNetwork") == rank.spec.get("hostNetwork")
        assert leader.spec["topologySpreadConstraints"] and "topologySpreadConstraints" not in rank.spec, "nodes are spread"
        policy = m.get("NetworkPolicy", "t-tandem-rank")["spec"]
        tcp = [r for r in policy["ingress"] if r["ports"][0]["port"] == 8110]
        assert len(tcp) == (0 if "kv.transport=rdma" in sets else 1), policy


def test_monitoring_resources_satisfy_the_operators_types():
    from cloudcoil.models import prometheus_operator
    from cloudcoil.models.prometheus_operator import v1
    assert prometheus_operator
    docs = Manifest(render(HELMS[0], "autoscaled")).docs
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule"):
        for doc in [d for d in docs if d["kind"] == kind]:
            getattr(v1, kind).model_validate(doc)
    assert {"ServiceMonitor", "PodMonitor"} <= {d["kind"] for d in docs}


def test_policies_have_no_finding_but_the_accepted_ones():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    for case in CASES:
        docs = [d for d in Manifest(render(HELMS[0], case)).docs if not from_files(d)]
        docs += [pod for d in docs for pod in as_pods(d)]
        with open(os.path.join(folder, case + ".yaml"), "w", encoding="utf-8") as f:
            yaml.safe_dump_all(docs, f)
    done = subprocess.run([os.path.join(os.path.dirname(sys.executable), "checkov"), "-d", folder, "--framework", "kubernetes",
                           "--compact", "--quiet", "--skip-download", "-o", "json"], capture_output=True, text=True, timeout=180)
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 500, report["summary"]
    used = set()
    for f in report["results"]["failed_checks"]:
        found = [a for a in ACCEPTED if a[0] == f["check_id"] and re.search(a[1], f["resource"])]
        assert found, (f["check_id"], f["check_name"], f["resource"], f["file_path"])
        used.add(found[0])
    assert used == set(ACCEPTED), f"accepted, but not found any more: {set(ACCEPTED) - used}"


CLAIM = ["--set", "model.path=m.gguf", "--set", "model.volume.persistentVolumeClaim.claimName=models"]
GROUP = ["decode.kind=LeaderWorkerSet", "decode.leaderWorkerSet.size=2"]
# (--set arguments, what the message must say in both Helms)
REFUSED = [
    (["router.replica=2"], r"router'?: .*[Aa]dditional propert.*replica"),
    (["prefill.config.max-num-seq=8"], r"prefill.config'?: .*[Aa]dditional propert.*max-num-seq"),
    (["prefill.config.kv-memory=0"], r"prefill.kv-memory|kv-memory'?: .*0\.001"),
    (["decode.config.threads=many"], r"threads'?: .*(integer)"),
    (["kv.transport=udp"], r"kv.transport'?: .*tcp.*rdma"),
    (["ports.http=70000"], r"ports.http'?: .*65,?535"),
    (["decode.pools.A100.replicas=1"], r"A100|pools"),
    (["prefill.pools.a.pools.b.replicas=1"], r"pools"),
    (["prefill.kind=DaemonSet"], r"prefill.kind'?: .*Deployment.*StatefulSet.*LeaderWorkerSet"),
    (["router.autoscaling.metrics[0].name=cpu_load", "router.autoscaling.metrics[0].target=1"], r"metrics.0.name"),
    (["clusterSecret.keyIds={}"], r"clusterSecret.keyIds'?"),
    (["networkPolicy.enabled=false"], r"kv.transport=tcp needs networkPolicy.enabled=true.*write the node's memory"),
    (["prefill.hostNetwork=true"], r"prefill.hostNetwork: a NetworkPolicy does not cover the host's network"),
    (["kv.transport=rdma", "kv.device=mlx5_0:1"], r"prefill.rdma.enabled: kv.transport=rdma needs it"),
    (["kv.transport=rdma", "prefill.rdma.enabled=true", "decode.rdma.enabled=true"],
     r"kv.device: kv.transport=rdma needs the name of an RDMA device"),
    (["kv.transport=rdma", "kv.device=mlx5_0:1", "kv.transports=all", "prefill.rdma.enabled=true", "decode.rdma.enabled=true"],
     r"kv.transports: \"all\" would let UCX fall back to TCP"),
    (["kv.device=lo"], r"kv.device: pods meet over one named network device"),
    (["kv.firstPort=9000"], r"kv.firstPort: must not be above kv.lastPort"),
    (["model.path="], r"model.path: name the model's file"),
    (["model.image.reference=x"], r"model: name exactly one source.*model.volume, model.image.reference"),
    (["prefill.enabled=false"], r"prefill: no pool is enabled"),
    (["auth.enabled=true"], r"auth: name auth.existingSecret, or list auth.keys"),
    (["standalone.enabled=true", "kv.transport=rdma"], r"standalone.enabled: .* move no KV"),
    (["tls.enabled=true"], r"tls: name tls.existingSecret .* or enable tls.certManager"),
    (["adminTls.enabled=true"], r"adminTls: name adminTls.existingSecret .* or enable adminTls.certManager"),
    (["adminTls.enabled=true", "adminTls.certManager.enabled=true"], r"adminTls.certManager.issuerRef: name the issuer"),
    (["adminTls.enabled=true", "adminTls.existingSecret=x", "adminTls.mode=mutual", "monitoring.podMonitor.enabled=true"],
     r"monitoring.tlsConfig: adminTls.mode=mutual asks Prometheus for a certificate"),
    (["tls.mode=both"], r"tls.mode'?: .*server.*mutual"),
    (["tracing.enabled=true"], r"tracing.endpoint: name the collector"),
    (["tracing.endpoint=collector:4318"], r"tracing.endpoint"),
    (["decode.pdb.minAvailable=1"], r"decode.pdb.minAvailable: 1 of 1 replicas would never let a node be drained"),
    (["router.terminationGracePeriodSeconds=20"],
     r"router.terminationGracePeriodSeconds: must be at least 15 above preStopSeconds"),
    (["prefill.leaderWorkerSet.size=2"], r"prefill.leaderWorkerSet: only for kind LeaderWorkerSet; a Deployment has no groups"),
    (["decode.kind=StatefulSet", "decode.leaderWorkerSet.exclusiveTopology=rack"],
     r"decode.leaderWorkerSet: only for kind LeaderWorkerSet; a StatefulSet has no groups"),
    ([*GROUP, "decode.leaderWorkerSet.size=65"], r"decode.leaderWorkerSet.size'?: .*64"),
    ([*GROUP, "decode.leaderWorkerSet.size=0"], r"decode.leaderWorkerSet.size'?: .*1"),
    ([*GROUP, "decode.gpu.count=1"], r"decode.leaderWorkerSet.size: this version's CUDA engine has no ranks.*on processors"),
    ([*GROUP, "decode.gpu.dra.enabled=true"], r"decode.leaderWorkerSet.size: this version's CUDA engine has no ranks"),
    ([*GROUP, "decode.replicas=3", "decode.pdb.minAvailable=1"], r"decode.pdb: of groups only maxUnavailable as a number"),
    ([*GROUP, "decode.pdb.maxUnavailable=10%"], r"decode.pdb: of groups only maxUnavailable as a number"),
    ([*GROUP, "decode.config.rank-join-timeout=3600"],
     r"decode.probes.startup: periodSeconds times failureThreshold is 1800 s, but a group may take 3600 s to join"),
    ([*GROUP, "fullnameOverride=a123456789012345678901234567890123456789", "decode.pools.b200.replicas=1"],
     r"decode-b200: the name \S+ is longer than the 48 characters of a set with groups"),
    (["standalone.enabled=true", *(g.replace("decode", "standalone") for g in GROUP), "networkPolicy.enabled=false"],
     r"kv.transport=tcp needs networkPolicy.enabled=true.*write the node's memory"),
    ([*GROUP, "decode.config.tensor-parallel-size=2"], r"decode.config'?: .*[Aa]dditional propert.*tensor-parallel-size"),
    ([*GROUP, "decode.config.rank=1"], r"decode.config'?: .*[Aa]dditional propert.*rank"),
    (["prefill.kind=LeaderWorkerSet", "prefill.strategy.type=Recreate"],
     r"prefill.strategy.type: a LeaderWorkerSet has RollingUpdate, not Recreate"),
    (["decode.kind=StatefulSet", "decode.strategy.type=Recreate"],
     r"decode.strategy.type: a StatefulSet has RollingUpdate and OnDelete, not Recreate"),
    (["fullnameOverride=70b"], r"fullnameOverride: Services would be named 70b; name it with a letter first"),
    (["decode.autoscaling.enabled=true", "decode.autoscaling.minReplicas=9"],
     r"decode.autoscaling.minReplicas: must not be above maxReplicas"),
    (["prefill.gpu.count=2"], r"prefill.gpu.count: this version's engine uses one GPU.*raise replicas"),
    (["decode.gpu.count=1", "decode.gpu.dra.enabled=true"], r"decode.gpu: count and dra.enabled exclude each other"),
]


def test_wrong_values_are_refused_with_their_name_and_the_remedy():
    for helm in HELMS:
        call([helm, "template", "t", CHART, *CLAIM])
        for sets, message in REFUSED:
            args = [a for s in sets for a in ("--set", s)]
            said = call([helm, "template", "t", CHART, *CLAIM, *args], status=1).replace("/", ".")
            assert re.search(message, said), (helm, sets, said)
        said = call([helm, "template", "t", CHART], status=1)
        assert "model: name exactly one source" in said, said


def leaves(schema, node, path=""):
    node = dict(schema["definitions"][node["$ref"].rsplit("/", 1)[1]], **node) if "$ref" in node else node
    yield path, node
    for key, child in node.get("properties", {}).items():
        yield from leaves(schema, child, f"{path}.{key}" if path else key)


def test_the_schema_describes_every_value_and_the_values_file_sets_it():
    with open(os.path.join(CHART, "values.schema.json"), encoding="utf-8") as f:
        schema = json.load(f)
    with open(os.path.join(CHART, "values.yaml"), encoding="utf-8") as f:
        values = yaml.safe_load(f)
    optional = re.compile(r"^global$|\.config\.|\.image\.|\.probes\.[a-z]+\.(initialDelaySeconds|successThreshold)$")
    for path, node in leaves(schema, schema):
        assert path == "" or len(node.get("description", "")) > 3, f"{path} has no description"
        if path and not optional.search(path):
            at = values
            for key in path.split("."):
                assert isinstance(at, dict) and key in at, f"values.yaml does not set {path}"
                at = at[key]


def test_generated_files_are_fresh():
    call([sys.executable, os.path.join(ROOT, "deploy", "helm", "gen.py"), "--build", BUILD, "--helm", HELMS[0], "--check"])


def commands(page):
    """Shell commands of a page's code blocks that run helm or tandemctl."""
    with open(os.path.join(ROOT, "docs", page), encoding="utf-8") as f:
        blocks = re.findall(r"^```\n(.*?)^```$", f.read(), re.M | re.S)
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    helm = [shlex.split(line) for line in lines if line.startswith(("helm install", "helm upgrade"))]
    ctl = [shlex.split(re.sub(r" && break$", "", line.split(" -- ")[1])) for line in lines if " -- tandemctl " in line]
    return helm, ctl


def test_the_commands_of_the_operations_page_work():
    helm_lines, ctl_lines = commands("operations.md")
    assert len(helm_lines) >= 8 and len(ctl_lines) >= 5
    for words in helm_lines:
        assert words[2] in ("smol", "qwen") and words[3] == "deploy/helm/tandem", words
        rest = [w for w in words[4:] if w not in ("--create-namespace", "--reuse-values")]
        for helm in HELMS:
            call([helm, "template", "smol", CHART, *CLAIM, *rest])
    for words in ctl_lines:
        options = {w for w in words if w.startswith("--")}
        verb = [w for w in words[1:] if w.islower() and not w.startswith("-") and "-" not in w][:2]
        said = call([os.path.join(BUILD, "ctl", "tandemctl"), *verb, "--help"])
        assert said.startswith("tandemctl " + " ".join(verb)) and all(f"{o} " in said for o in options), (words, said)


class Api(http.server.BaseHTTPRequestHandler):
    """As much of an API server as Helm asks for before it installs: discovery, and one Secret or none."""
    secret = None
    kinds = {"v1": ["Secret", "ConfigMap", "Service", "ServiceAccount", "Pod"], "apps/v1": ["Deployment"],
             "policy/v1": ["PodDisruptionBudget"], "autoscaling/v2": ["HorizontalPodAutoscaler"],
             "keda.sh/v1alpha1": ["ScaledObject"], "leaderworkerset.x-k8s.io/v1": ["LeaderWorkerSet"],
             "networking.k8s.io/v1": ["NetworkPolicy"]}

    def answer(self, path):
        groups = [g.split("/") for g in Api.kinds if "/" in g]
        fixed = {"/version": {"major": "1", "minor": "34", "gitVersion": "v1.34.0"},
                 "/api": {"kind": "APIVersions", "versions": ["v1"]},
                 "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [
                     {"name": g, "versions": [{"groupVersion": f"{g}/{v}", "version": v}]} for g, v in groups]},
                 "/api/v1/namespaces/tandem/secrets/t-tandem-cluster": Api.secret}
        for version, kinds in Api.kinds.items():
            plural = {k: k.lower()[:-1] + "ies" if k.endswith("y") else k.lower() + "s" for k in kinds}
            fixed[("/api/" if version == "v1" else "/apis/") + version] = {
                "kind": "APIResourceList", "groupVersion": version, "resources": [
                    {"name": plural[k], "singularName": k.lower(), "namespaced": True, "kind": k, "verbs": ["get", "list"]}
                    for k in kinds]}
        return fixed.get(path)

    def do_GET(self):
        answer = self.answer(self.path.split("?")[0])
        missing = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}
        body = json.dumps(answer or missing).encode()
        self.send_response(200 if answer else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


class ApiServer:
    def __enter__(self):
        Api.secret = None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{self.server.server_port}"

    def __exit__(self, *exc):
        self.server.shutdown()
        self.server.server_close()


def stored(secret):
    """As Helm leaves it in the cluster."""
    owner = {"meta.helm.sh/release-name": "t", "meta.helm.sh/release-namespace": "tandem"}
    return dict(secret, metadata=dict(secret["metadata"], annotations=dict(secret["metadata"]["annotations"], **owner)))


def cluster_secret(helm, url, ids):
    text = call([helm, "template", "t", CHART, "-n", "tandem", *CLAIM, "--set", f"clusterSecret.keyIds={{{ids}}}",
                 "--dry-run=server", "--disable-openapi-validation", "--kube-apiserver", url, "-s", "templates/secrets.yaml"],
                KUBECONFIG="/dev/null", NO_PROXY="127.0.0.1")
    return Manifest(text).get("Secret", "t-tandem-cluster")


def test_the_cluster_secret_is_made_once_kept_over_upgrades_and_rotates():
    for helm in HELMS:
        with ApiServer() as url:
            first = cluster_secret(helm, url, "k1")
            assert first["metadata"]["annotations"]["helm.sh/resource-policy"] == "keep"
            line = base64.b64decode(first["data"]["cluster.key"]).decode()
            assert re.fullmatch(r"k1 [A-Za-z0-9]{48}\n", line), line
            assert cluster_secret(helm, url, "k1")["data"] != first["data"], "not random"
            Api.secret = stored(first)
            assert cluster_secret(helm, url, "k1")["data"] == first["data"], "an upgrade changed the secret"
            second = cluster_secret(helm, url, "k1,k2")
            both = base64.b64decode(second["data"]["cluster.key"]).decode()
            assert both.startswith(line + "k2 "), "the new key must come second: nobody knows it yet"
            Api.secret = stored(second)
            third = base64.b64decode(cluster_secret(helm, url, "k2,k1")["data"]["cluster.key"]).decode()
            assert third.splitlines() == list(reversed(both.splitlines()))
            fourth = cluster_secret(helm, url, "k2")
            assert fourth["data"]["secret.k2"] == second["data"]["secret.k2"] and "secret.k1" not in fourth["data"]


def test_the_pods_restart_at_a_rotation_and_not_at_an_upgrade():
    def marks(*args):
        return {w.name: w.template["metadata"]["annotations"] for w in Manifest(render(HELMS[0], "cpu", *args)).workloads()}
    assert marks() == marks()
    assert all(a["tandem/cluster-keys"] == "k2.k1" for a in marks("--set", "clusterSecret.keyIds={k2,k1}").values())


def test_the_policies_let_pods_out_to_the_ports_of_the_addresses_they_are_given():
    ports = {"http://minio.storage:9000/models": 9000, "http://models.example/m": 80, "https://models.example/m": 443,
             "https://models.example:8443/m": 8443, "hf://owner/name@main": 443}
    traces = {"http://otel:4318": 4318, "https://otel.example": 443, "http://otel": 80}
    for what, values, case in (("model.fetch.uri", ports, "autoscaled"), ("tracing.endpoint", traces, "autoscaled")):
        for url, port in values.items():
            docs = Manifest(render(HELMS[-1], case, "--set", f"{what}={url}")).docs
            for name in ("t-tandem-node", "t-tandem-router"):
                policy = next(d for d in docs if d["kind"] == "NetworkPolicy" and d["metadata"]["name"] == name)
                peer = "ipBlock" if what == "model.fetch.uri" else "namespaceSelector"
                out = [e["ports"] for e in policy["spec"]["egress"] if peer in e["to"][0] and e["ports"][0]["port"] != 53]
                assert out == [[{"port": port, "protocol": "TCP"}]], (url, name, out)


def test_the_values_of_the_grpc_page_let_outside_routers_drive_the_nodes():
    with open(os.path.join(ROOT, "docs", "grpc.md"), encoding="utf-8") as f:
        block, = re.findall(r"^```yaml\n(.*?)^```$", f.read(), re.M | re.S)
    values = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "values.yaml")
    with open(values, "w", encoding="utf-8") as f:
        f.write(block)
    m = Manifest(render(HELMS[0], "cpu", "-f", values))
    policy = m.get("NetworkPolicy", "t-tandem-engine")
    satisfies(policy, ANY_VERSION)
    nodes = m.selected(policy["spec"]["podSelector"]["matchLabels"])
    port = policy["spec"]["ingress"][0]["ports"][0]["port"]
    m.docs.append({"kind": "Secret", "metadata": {"name": "engine-keys", "labels": {}},
                   "stringData": {"keys": f"smg {hashlib.sha256(b'key').hexdigest()} smg 0 0 0 0\n"}})
    p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
    try:
        for w in nodes:
            p.start(w)
        assert {w.name for w in nodes} == {"t-tandem-prefill", "t-tandem-decode"}
        for w in nodes:
            asked = [os.path.join(BUILD, "ctl", "tandemctl"), "health", f"{p.addresses[w.name]}:{port}", "--service",
                     "vllm.grpc.engine.VllmEngine"]
            until(lambda: subprocess.run(asked, capture_output=True, text=True, check=False).stdout == "SERVING\n", 60, p.log(w))
    finally:
        assert set(p.stop().values()) == {0}


def test_a_group_that_serves_alone_passes_its_probes_and_answers():
    sets = ["standalone.enabled=true", *(g.replace("decode", "standalone") for g in GROUP), "standalone.config.threads=1"]
    m = Manifest(render(HELMS[0], "cpu", *(a for s in sets for a in ("--set", s))))
    leader, rank = m.workloads()
    p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
    try:
        for w in (rank, leader):
            p.start(w)
        for w in (leader, rank):
            get = w.container["readinessProbe"]["httpGet"]
            until(lambda: open_get(f"http://{p.addresses[w.name]}:{w.ports()[get['port']]}{get['path']}") == 200, 60, p.log(w))
        service = m.get("Service", "t-tandem")["spec"]
        assert [w.name for w in m.selected(service["selector"])] == [leader.name], "clients come to the leader"
        body = json.dumps({"prompt": "hello", "max_tokens": 4}).encode()
        url = f"http://{p.addresses[leader.name]}:{leader.ports()['http']}/v1/completions"
        ask = urllib.request.Request(url, body, {"Content-Type": "application/json"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(ask, timeout=60) as answer:
            assert json.load(answer)["usage"]["completion_tokens"] == 4
    finally:
        assert set(p.stop().values()) == {0}, [p.log(w)[-1000:] for w in (leader, rank)]


def notes(helm, *args):
    with ApiServer() as url:
        return call([helm, "install", "t", CHART, "-n", "tandem", "--dry-run=client", "--disable-openapi-validation",
                     "--kube-apiserver", url, *CLAIM, *args], KUBECONFIG="/dev/null", NO_PROXY="127.0.0.1").split("NOTES:")[1]


# (--set arguments, what the notes must say)
SAID = [
    (["prefill.gpu.count=1"], r"WARNING: prefill asks for GPUs: .* serves only in `standalone` nodes"),
    (["standalone.enabled=true", "networkPolicy.enabled=false"], r"WARNING: networkPolicy.enabled=false"),
    (["router.service.type=NodePort"], r"NOTE: router.service.type=NodePort: .* networkPolicy.clients"),
    (["decode.autoscaling.enabled=true"], r"NOTE: decode scales on pod metrics: .*custom\.metrics\.k8s\.io"),
    (["decode.autoscaling.enabled=true", "decode.autoscaling.type=keda"],
     r"NOTE: decode scales on series of http://prometheus.* release and pool: enable monitoring.podMonitor"),
    (["adminTls.enabled=true", "adminTls.existingSecret=x", "adminTls.mode=mutual"],
     r"NOTE: adminTls.mode=mutual: tandemctl needs"),
    (["auth.enabled=true", "auth.existingSecret=x"], r"Authorization: Bearer"),
    ([*GROUP, "decode.replicas=3"], r"decode \(3 of 2 pods\)"),
    ([*GROUP, "model.volume=null", "model.fetch.uri=https://models.example/m", "model.fetch.files[0].name=m.gguf",
      "model.fetch.files[0].sha256=" + "0" * 64], r"NOTE: every pod of a group fetches the model.*a claim"),
    (["standalone.enabled=true", "standalone.pools.a.replicas=2"],
     r"wait pod -l app.kubernetes.io/instance=t,app.kubernetes.io/component=standalone --for=condition=Ready"),
]


def test_notes_say_how_to_ask_and_warn():
    for helm in HELMS:
        plain = notes(helm)
        assert "service/t-tandem 8000:8000" in plain and '"model":"default"' in plain, plain
        assert "rollout status deployment/t-tandem-router" in plain
        assert "curl" not in notes(helm, "--set", "router.enabled=false"), "nobody answers there"
        assert "helm test t -n tandem" in plain and "tandemctl explain REQUEST-ID" in plain, plain
        assert "WARNING: auth.enabled=false" in plain and not re.search("|".join(message for _, message in SAID), plain), plain
        for sets, message in SAID:
            said = notes(helm, *[a for s in sets for a in ("--set", s)])
            assert re.search(message, said), (helm, sets, said)


def test_rules_and_dashboards_are_their_files():
    docs = Manifest(render(HELMS[0], "autoscaled")).docs
    made = {d["metadata"]["name"]: d for d in docs if from_files(d)}
    for path in glob.glob(os.path.join(CHART, "files", "rules", "*.yaml")):
        name = os.path.basename(path)
        with open(path, encoding="utf-8") as f:
            assert made.pop(f"t-tandem-{name[:-5]}")["spec"] == yaml.safe_load(f), name
    for path in glob.glob(os.path.join(CHART, "files", "dashboards", "*.json")):
        name = os.path.basename(path)
        with open(path, encoding="utf-8") as f:
            doc = made.pop(f"t-tandem-dashboard-{name[:-5]}")
            assert json.loads(doc["data"][name]) == json.load(f), name
            assert doc["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert not made, made.keys()


def test_the_kustomize_base_builds_and_takes_an_overlay():
    base = os.path.join(ROOT, "deploy", "kustomize", "base")
    docs = Manifest(call([KUBECTL, "kustomize", base])).docs
    assert {"Deployment", "NetworkPolicy", "Service", "PodDisruptionBudget"} <= {d["kind"] for d in docs}
    folder = tempfile.mkdtemp(dir=SCRATCH)
    with open(os.path.join(folder, "kustomization.yaml"), "w", encoding="utf-8") as f:
        f.write(f"resources: [{os.path.relpath(base, folder)}]\nnamespace: llm\n"
                "images: [{name: tandem, newName: r.example/t, newTag: v2}]\nreplicas: [{name: tandem-decode, count: 3}]\n")
    docs = Manifest(call([KUBECTL, "kustomize", folder])).docs
    decode = next(d for d in docs if d["kind"] == "Deployment" and d["metadata"]["name"] == "tandem-decode")
    assert decode["spec"]["replicas"] == 3 and decode["metadata"]["namespace"] == "llm"
    assert decode["spec"]["template"]["spec"]["containers"][0]["image"] == "r.example/t:v2"
    for doc in docs:
        if not doc["kind"].endswith("CustomResourceDefinition"):
            kubernetes_validate.validate(doc, "1.37", strict=True)


if "--write" in sys.argv:
    write_golden()
else:
    run(globals())
