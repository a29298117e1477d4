"""The rendered chart against our binaries: flags, ports, probes, metrics, references; and its pods as local processes.

Reads the committed renderings (golden/), so it needs no Helm; that they are what Helm renders is chart_test.py's business.
"""
import atexit
import hashlib
import http.server
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tempfile
import threading
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "integration"))
from harness import BUILD, ROOT, SCRATCH, chat, cluster, open_get, run, tiny_model  # noqa: E402
from manifest import LocalPods, Manifest, Workload, environment, listening, matches, until  # noqa: E402

CHART = os.path.join(ROOT, "deploy", "helm", "tandem")
GOLDEN = {f[:-5]: Manifest.load(os.path.join(HERE, "golden", f)) for f in sorted(os.listdir(os.path.join(HERE, "golden")))
          if f.endswith(".yaml")}
# What a rendering may name without defining it: the operator brings them.
BROUGHT = {"PersistentVolumeClaim", "StorageClass"}
CERTS = {}
SHARED = {}  # the running pods of a rendering, by its name


def every_workload():
    for name, m in GOLDEN.items():
        pods = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
        for doc in m.of("Secret"):  # a rendering that names a Secret of the operator's needs a stand-in
            assert doc
        for w in m.workloads():
            yield name, m, pods, w


def certificates():
    """{name: text} of a CA, a router's certificate for the Services' names, and a client's."""
    if not CERTS:
        at = tempfile.mkdtemp(dir=SCRATCH)

        def openssl(*args):
            subprocess.run(["openssl", *args], cwd=at, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout"]
        openssl("req", "-x509", *key, "ca.key", "-out", "ca.crt", "-subj", "/CN=ca", "-days", "2")
        for name, san in (("server", "DNS:t-tandem,DNS:t-tandem.tandem.svc,DNS:t-tandem-admin"), ("client", "DNS:client")):
            openssl("req", *key, name + ".key", "-out", name + ".csr", "-subj", "/CN=" + name, "-addext", "subjectAltName=" + san)
            openssl("x509", "-req", "-in", name + ".csr", "-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial",
                    "-copy_extensions", "copy", "-out", name + ".crt", "-days", "2")
        for name in ("ca.crt", "server.crt", "server.key", "client.crt", "client.key"):
            with open(os.path.join(at, name), encoding="ascii") as f:
                CERTS[name] = f.read()
    return CERTS


def brought(name):
    """Content of a Secret that the operator (or cert-manager) brings."""
    c = certificates()
    server = {"tls.crt": c["server.crt"], "tls.key": c["server.key"], "ca.crt": c["ca.crt"]}
    return {"t-tandem-tls": server, "admin-tls": server, "t-tandem-admin-tls": server,
            "client-ca": {"ca.crt": c["ca.crt"]}, "operators-ca": {"ca.crt": c["ca.crt"]},
            "test-client": {"tls.crt": c["client.crt"], "tls.key": c["client.key"]},
            "hf": {"token": "t"}, "tandem-cluster": {"cluster.key": "k1 0123456789abcdef0123456789abcdef\n"}}[name]


def with_brought_secrets(m):
    """Secrets that a rendering names and the operator brings, with plausible content."""
    have = {d["metadata"]["name"] for d in m.of("Secret")}
    for _, template in m.pods():
        for v in template["spec"]["volumes"]:
            name = (v.get("secret") or {}).get("secretName")
            if name and name not in have:
                have.add(name)
                m.docs.append({"kind": "Secret", "metadata": {"name": name, "labels": {}}, "stringData": brought(name)})
    return m


for _m in GOLDEN.values():
    with_brought_secrets(_m)


def config_of(argv, env, flag):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
    done = subprocess.run(argv + [flag], env=dict(clean, **env), capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, (argv, done.stdout[-500:], done.stderr[-1500:])
    return done.stdout


def test_every_flag_and_variable_is_accepted_by_the_program():
    n = 0
    for name, _, pods, w in every_workload():
        argv, env, _ = pods.command(w)
        config_of(argv, env, "--check-config")
        help_text = config_of(argv[:1], {}, "--help")
        if w.component != "node":  # a router's pod is where an operator runs tandemctl
            help_text += config_of([os.path.join(BUILD, "ctl", "tandemctl"), "get", "nodes"], {}, "--help")
        for variable in env:
            if variable.startswith("TANDEM_"):
                assert f"--{variable[7:].lower().replace('_', '-')} " in help_text, (name, w.name, variable)
        n += 1
    assert n >= 14, n


def test_an_unknown_flag_would_be_noticed():
    _, _, pods, w = next(every_workload())
    argv, env, _ = pods.command(w)
    for bad in ("--no-such-flag=1", "--log-level=loud", "--drain-timeout=-1"):
        done = subprocess.run(argv + [bad, "--check-config"], capture_output=True, text=True, timeout=30,
                              env=dict(os.environ, **env))
        assert done.returncode == 2, (bad, done.returncode)


def test_ports_of_containers_are_those_the_programs_listen_on():
    for name, _, pods, w in every_workload():
        argv, env, _ = pods.command(w)
        told = dict(re.findall(r"^([a-z-]+): \"?(.*?)\"?$", config_of(argv, env, "--print-config"), re.M))
        ports = w.ports()
        assert ports["admin"] == int(told["admin-port"]), (name, w.name)
        if w.is_router:
            assert ports["http"] == int(told["port"]), (name, w.name)
            assert told["grpc"] == ("true" if "grpc" in ports else "false"), (name, w.name)
            assert "grpc" not in ports or ports["grpc"] == int(told["grpc-port"]), (name, w.name)
        elif w.is_rank:
            assert set(ports) == {"admin"}, "clients, routers and ranks come to the leader"
        else:
            starts_as = w.labels["tandem/starts-as"]
            assert told["role"] == ("both" if starts_as == "standalone" else starts_as), (name, w.name)
            if w.component == "node":
                assert ports["ctrl"] == int(told["listen"].rsplit(":", 1)[1]), (name, w.name)
            else:
                assert ports["grpc"] == int(told["grpc-port"]), (name, w.name)
                assert (ports["http"], ports["front"]) == (int(told["port"]), int(told["router-admin-port"])), (name, w.name)
        assert told["admin-host"] == pods.addresses[w.name], "probes come to the pod's address"


def chosen(selector, labels):
    for e in selector.get("matchExpressions", []):
        assert e["operator"] == "In", e
        if labels.get(e["key"]) not in e["values"]:
            return False
    return matches(selector["matchLabels"], labels)


def test_selectors_find_pods_and_names_of_ports_resolve():
    for name, m in GOLDEN.items():
        for service in m.of("Service"):
            found = m.selected(service["spec"]["selector"])
            assert len(found) == 1 and not found[0].is_rank, (name, service["metadata"]["name"], [w.name for w in found])
            for port in service["spec"]["ports"]:
                assert port["targetPort"] in found[0].ports(), (name, service["metadata"]["name"], port)
        for doc in m.of("PodDisruptionBudget"):
            found = m.selected(doc["spec"]["selector"]["matchLabels"])
            assert {w.doc["metadata"]["name"] for w in found} == {doc["metadata"]["name"]}, (name, doc["metadata"]["name"])
            assert len(found) == found[0].size, f"{name}: whoever evicts a pod of a group ends its node"
        for w in m.workloads():
            if w.doc["kind"] != "LeaderWorkerSet":
                assert m.selected(w.doc["spec"]["selector"]["matchLabels"]) == [w] or len(
                    m.selected(w.doc["spec"]["selector"]["matchLabels"])) == 1, (name, w.name)
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                assert w.container[probe]["httpGet"]["port"] in w.ports(), (name, w.name, probe)
        for doc in m.of("HorizontalPodAutoscaler", "ScaledObject"):
            target = doc["spec"]["scaleTargetRef"]
            scaled = Workload(m, m.get(target["kind"], target["name"]))
            assert "replicas" not in scaled.doc["spec"], f"{name}: {scaled.name} has replicas beside its autoscaler"
        for doc in m.of("ServiceMonitor"):
            found = [s for s in m.of("Service") if matches(doc["spec"]["selector"]["matchLabels"], s["metadata"]["labels"])]
            assert len(found) == 1 and found[0]["spec"]["ports"][0]["name"] == doc["spec"]["endpoints"][0]["port"], name
        for doc in m.of("PodMonitor"):
            found = [w for w in m.workloads() if chosen(doc["spec"]["selector"], w.labels)]
            assert {w.name for w in found} == {w.name for w in m.workloads() if not w.is_router}, name
            assert all(doc["spec"]["podMetricsEndpoints"][0]["port"] in w.ports() for w in found), name


def test_routers_find_pods_by_a_headless_service_before_they_are_ready():
    looked_up = 0
    for name, m in GOLDEN.items():
        for w in m.workloads():
            for arg in (a for a in w.container["args"] if a.startswith("--node=")):
                host, port = re.match(r"--node=tcp://([a-z0-9-]+)\.tandem\.svc:(\d+)$", arg).groups()
                spec = m.get("Service", host)["spec"]
                assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] is True, (name, host)
                found, = m.selected(spec["selector"])
                assert found.component == "node" and found.index == 0 and found.ports()["ctrl"] == int(port), (name, arg)
                looked_up += 1
    assert looked_up >= 9, looked_up


def test_no_selector_but_a_pools_own_names_a_role():
    for name, m in GOLDEN.items():
        text = json.dumps([d["spec"] for d in m.of("NetworkPolicy", "Service", "PodMonitor")])
        assert "starts-as" not in text, name
        for doc in m.of("NetworkPolicy"):
            assert "tandem/pool" not in json.dumps(doc["spec"]), f"{name}: {doc['metadata']['name']} selects a pool"


def test_every_reference_is_defined():
    for name, m in GOLDEN.items():
        accounts = {d["metadata"]["name"] for d in m.of("ServiceAccount")}
        for pod, template in m.pods():
            spec = template["spec"]
            assert spec["serviceAccountName"] in accounts, (name, pod)
            volumes = {v["name"]: v for v in spec["volumes"]}
            for v in volumes.values():
                if "configMap" in v:
                    m.get("ConfigMap", v["configMap"]["name"])
                if "secret" in v:
                    m.get("Secret", v["secret"]["secretName"])
            for c in spec["containers"] + spec.get("initContainers", []):
                for mount in c.get("volumeMounts", []):
                    assert mount["name"] in volumes, (name, pod, mount)
            claims = {c["name"] for c in spec.get("resourceClaims", [])}
            for c in spec.get("resourceClaims", []):
                m.get("ResourceClaimTemplate", c["resourceClaimTemplateName"])
            assert {c["name"] for c in spec["containers"][0]["resources"].get("claims", [])} == claims, (name, pod)


def test_every_pod_is_confined():
    for name, m in GOLDEN.items():
        for pod, template in m.pods():
            spec = template["spec"]
            assert spec["automountServiceAccountToken"] is False and spec["enableServiceLinks"] is False, (name, pod)
            assert spec["securityContext"]["runAsNonRoot"] is True and spec["securityContext"]["runAsUser"] > 10000, (name, pod)
            assert "hostNetwork" not in spec and "hostIPC" not in spec and "hostPID" not in spec, (name, pod)
            for c in spec["containers"] + spec.get("initContainers", []):
                s = c["securityContext"]
                assert s["readOnlyRootFilesystem"] and not s["allowPrivilegeEscalation"] and not s["privileged"], (name, pod)
                assert s["capabilities"]["drop"] == ["ALL"] and s["seccompProfile"] == {"type": "RuntimeDefault"}, (name, pod)
                rdma = any("rdma" in r for r in c["resources"].get("limits", {}))
                assert s["capabilities"].get("add", []) == (["IPC_LOCK"] if rdma else []), (name, pod)
                assert {"requests", "limits"} <= set(c["resources"]), (name, pod, c["name"])


def test_the_end_of_a_pod_fits_into_its_grace():
    for name, _, pods, w in every_workload():
        argv, env, _ = pods.command(w)
        drain = float(dict(re.findall(r"^([a-z-]+): (\S+)$", config_of(argv, env, "--print-config"), re.M))["drain-timeout"])
        sleep = float(w.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command", ["sleep", "0"])[1])
        assert drain + sleep + 10 <= w.spec["terminationGracePeriodSeconds"], (name, w.name)
        assert not w.is_router or sleep > 0, (name, w.name)


# ---- nodes that are groups of pods ----

def groups():
    """(rendering, pods of a set's first group by rank) of every set with groups."""
    for name, m in GOLDEN.items():
        by_set = {}
        for w in m.workloads():
            by_set.setdefault(w.doc["metadata"]["name"], []).append(w)
        for pods_of in by_set.values():
            if len(pods_of) > 1:
                yield name, m, pods_of


def test_a_groups_pods_are_told_to_be_one_node():
    n = 0
    for name, m, (leader, *ranks) in groups():
        p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
        told = {}
        for w in (leader, *ranks):
            argv, env, _ = p.command(w)
            said = config_of(argv, env, "--print-config").replace(os.path.join(p.folder, w.name), "")
            told[w.index] = dict(re.findall(r"^([a-z-]+): \"?(.*?)\"?$", said, re.M))
            assert told[w.index]["tensor-parallel-size"] == str(leader.size), (name, w.name)
            assert told[w.index]["rank"] == str(w.index), (name, w.name)
        listens = told[0]["rank-listen"]
        assert listens == f"{p.addresses[leader.name]}:{leader.ports()['ranks']}", (name, listens)
        assert leader.doc["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart", name
        assert leader.doc["spec"]["startupPolicy"] == "LeaderCreated", "a leader that waits for its ranks is not ready before them"
        for w in ranks:
            assert told[w.index]["rank-leader"] == listens, (name, w.name)
            differ = {k for k in told[0] if told[0][k] != told[w.index][k]}
            assert differ <= {"rank", "rank-listen", "rank-leader", "name", "listen", "admin-host"}, (name, w.name, differ)
            for key in ("image", "command", "resources", "securityContext", "volumeMounts", "env", "startupProbe", "livenessProbe"):
                assert w.container[key] == leader.container[key], (name, w.name, key)
            for key in ("terminationGracePeriodSeconds", "securityContext", "volumes", "serviceAccountName"):
                assert w.spec[key] == leader.spec[key], (name, w.name, key)
            n += 1
    assert n >= 3, n


def selected_by(m, rule_peers, labels):
    return any(matches(peer["podSelector"].get("matchLabels", {}), labels) for peer in rule_peers if "podSelector" in peer)


def open_between(m, source, target):
    """Port ranges by which a policy lets `source` out to `target`, and another lets it in."""
    ways = []
    for direction, peers, mine, other in (("egress", "to", source, target), ("ingress", "from", target, source)):
        ways.append({(p["port"], p.get("endPort", p["port"])) for doc in m.of("NetworkPolicy")
                     if matches(doc["spec"]["podSelector"]["matchLabels"], mine.labels)
                     for rule in doc["spec"].get(direction, []) if selected_by(m, rule[peers], other.labels)
                     for p in rule["ports"]})
    return ways[0] & ways[1]


def test_the_policies_open_a_group_to_itself_and_its_ranks_to_nobody_else():
    m = GOLDEN["tensor-parallel"]
    router = next(w for w in m.workloads() if w.is_router)
    for _, m, (leader, *ranks) in groups():
        kv, = (r for r in open_between(m, leader, ranks[0]))
        for w in ranks:
            assert open_between(m, leader, w) == open_between(m, w, w) == {kv}, w.name
            assert open_between(m, w, leader) == {kv, (leader.ports()["ranks"],) * 2}, w.name
            assert not open_between(m, router, w) and not open_between(m, w, router), w.name
        assert open_between(m, router, leader) == {(leader.ports()["ctrl"],) * 2}


# ---- the pods of the rendering "cpu" (and of one with groups) as processes ----

def pods(name="cpu"):
    if name not in SHARED:
        m = GOLDEN[name]
        p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model(heads=8, kv_heads=4))  # one for each rank at least
        if name != "cpu":
            for i, w in enumerate(p.addresses):
                p.addresses[w] = f"127.4.{os.getpid() % 250}.{i + 1}"
        SHARED[name] = p
        atexit.register(p.stop)
        for w in reversed(m.workloads()):  # a group's ranks before its leader: they wait for it
            p.start(w)
        for w in m.workloads():
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                answers(p, w, probe)
    return SHARED[name]


def answers(p, w, probe):
    """As the kubelet: every period, until it succeeds or has failed too often; here with a bound of 60 s."""
    get = w.container[probe]["httpGet"]
    scheme = get.get("scheme", "HTTP").lower()
    url = f"{scheme}://{p.addresses[w.name]}:{w.ports()[get['port']]}{get['path']}"

    def once():
        assert p.processes[w.name].poll() is None, p.log(w)[-2000:]
        return (unverified_get(url) if scheme == "https" else open_get(url)) == 200
    until(once, 60, f"{probe} of {w.name} at {url}")


def unverified_get(url):
    """Status of a GET by a client that shows no certificate and checks none, as the kubelet's."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)) \
                .open(url, timeout=10) as answer:
            return answer.status
    except urllib.error.HTTPError as e:
        return e.code


def test_the_pods_start_pass_their_probes_and_answer_the_helm_test():
    done = helm_test(pods())
    assert done.returncode == 0 and "a chat request is answered" in done.stdout, (done.stdout, done.stderr)


def helm_test(p, **change):
    """Runs what the pod of `helm test` runs; the Service's name leads to the router's address, paths are mapped."""
    m = p.manifest
    pod = m.get("Pod", "t-tandem-test")
    test = pod["spec"]["containers"][0]
    service = m.get("Service", "t-tandem")
    router = m.selected(service["spec"]["selector"])[0]
    env = dict(environment(test, {"secret test-key/key": "example-key"}), **change)
    port = service["spec"]["ports"][0]
    assert re.fullmatch(rf"https?://t-tandem:{port['port']}", env["ROUTER_URL"]), env["ROUTER_URL"]
    folder = tempfile.mkdtemp(dir=SCRATCH)
    with open(os.path.join(folder, ".curlrc"), "w", encoding="ascii") as f:
        f.write(f"connect-to = \"t-tandem:{port['port']}:{p.addresses[router.name]}:{router.ports()[port['targetPort']]}\"\n")
    script = test["args"][0]
    for path, local in p.mounts(Workload.of_pod(m, pod), test).items():
        script = script.replace(path + "/", local + "/")
    env.update(CURL_HOME=folder, no_proxy="*")
    return subprocess.run(test["command"] + [script], env=dict(os.environ, **env), capture_output=True, text=True, timeout=120)


def test_a_node_that_serves_alone_passes_its_probes_and_the_helm_test():
    m = GOLDEN["gpu"]
    w, = m.workloads()
    assert "--backend=cuda" in w.container["args"] and w.container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
    p.addresses[w.name] = f"127.3.{os.getpid() % 250}.1"
    atexit.register(p.stop)
    p.start(w)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        answers(p, w, probe)
    done = helm_test(p)
    assert done.returncode == 0 and "a chat request is answered" in done.stdout, (done.stdout, done.stderr)
    allowed = allowed_ports(m, w)
    for host, port in listening(p.processes[w.name].pid):
        assert any(lo <= port <= hi for lo, hi in allowed) or host == "127.0.0.1", f"{host}:{port}"
    assert set(p.stop().values()) == {0}


def mounted(p, name):
    """A file with one of the certificates."""
    path = os.path.join(p.folder, name)
    with open(path, "w", encoding="ascii") as f:
        f.write(certificates()[name])
    return path


def test_with_tls_and_keys_only_callers_with_certificate_and_key_are_served():
    m = GOLDEN["tls-auth"]
    p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
    for i, name in enumerate(p.addresses):
        p.addresses[name] = f"127.2.{os.getpid() % 250}.{i + 1}"
    atexit.register(p.stop)
    for w in m.workloads():
        p.start(w)
    for w in m.workloads():
        answers(p, w, "readinessProbe")
    done = helm_test(p)
    assert done.returncode == 0, (done.stdout, done.stderr)
    for line in ("a caller without a certificate is refused", "a caller without key is refused", "a chat request is answered"):
        assert line in done.stdout, done.stdout
    router = next(w for w in m.workloads() if w.is_router)
    _, env, _ = p.command(router)
    assert env["TANDEM_ROUTER"].startswith("https://") and unverified_get(env["TANDEM_ROUTER"] + "/metrics") == 403, env
    for args, status in (([], 1), (["--tls-cert", mounted(p, "client.crt"), "--tls-key", mounted(p, "client.key")], 0)):
        done = subprocess.run([os.path.join(BUILD, "ctl", "tandemctl"), "get", "nodes", *args], env=dict(os.environ, **env),
                              capture_output=True, text=True, timeout=30)
        assert done.returncode == status, (done.stdout, done.stderr)
    done = helm_test(p, API_KEY="wrong")
    assert done.returncode == 1 and "a chat request says 401" in done.stderr, (done.stdout, done.stderr)
    assert set(p.stop().values()) == {0}


def nodes_of(p):
    """Names of the nodes that the router's pod knows, by tandemctl inside it."""
    router = next(w for w in p.manifest.workloads() if w.is_router)
    _, env, _ = p.command(router)
    done = subprocess.run([os.path.join(BUILD, "ctl", "tandemctl"), "get", "nodes", "-o", "json"], env=dict(os.environ, **env),
                          capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return sorted(n["name"] for n in json.loads(done.stdout)["nodes"])


def open_stream(p, n):
    """(connection, answer) of a chat request of n tokens whose first event has come."""
    router = next(w for w in p.manifest.workloads() if w.is_router)
    c = http.client.HTTPConnection(p.addresses[router.name], 8000, timeout=60)
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": n, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}
    c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = c.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.readline().startswith(b"data: ")
    return c, answer


def rest_of_stream(c, answer):
    """Tokens that it had in the end."""
    events = [json.loads(line[6:]) for line in answer.read().splitlines() if line.startswith(b"data: {")]
    c.close()
    return events[-1]["usage"]["completion_tokens"]


def test_tandemctl_in_a_routers_pod_finds_its_router():
    assert nodes_of(pods()) == ["t-tandem-decode-0", "t-tandem-prefill-0"]


def tokens(p, prompt):
    """Output token ids of one completion, by the router."""
    router = next(w for w in p.manifest.workloads() if w.is_router)
    c = http.client.HTTPConnection(p.addresses[router.name], 8000, timeout=60)
    body = {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True, "return_token_ids": True}
    c.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
    answer = c.getresponse()
    said = answer.read()
    c.close()
    assert answer.status == 200, said
    return json.loads(said)["choices"][0]["token_ids"]


def test_groups_of_pods_serve_as_one_node_each_with_the_tokens_of_one_process():
    p = pods("tensor-parallel")
    done = helm_test(p)
    assert done.returncode == 0 and "a chat request is answered" in done.stdout, (done.stdout, done.stderr)
    assert nodes_of(p) == ["t-tandem-decode-0", "t-tandem-prefill-0"], "a router sees nodes, no ranks"
    for prompt in ("hello", "one two three four five six seven eight nine ten " * 8):
        assert tokens(p, prompt) == tokens(pods(), prompt), prompt
    only_what_the_policies_let_in(p)


def test_the_end_of_one_pod_is_its_groups_and_a_new_group_serves():
    """What the controller is asked for by RecreateGroupOnPodRestart: all pods of the group go, and come again."""
    p = pods("tensor-parallel")
    group = [w for w in p.manifest.workloads() if w.labels["tandem/pool"] == "decode"]
    others = [w for w in p.manifest.workloads() if w not in group]
    p.processes[group[-1].name].kill()
    for w in group[:-1]:
        assert p.processes[w.name].wait(30) == 1, (w.name, p.log(w)[-2000:])
    for w in group:
        p.processes[w.name].wait()
        p.start(w)
    for w in group:
        answers(p, w, "readinessProbe")
    router = next(w for w in others if w.is_router)
    answers(p, router, "readinessProbe")
    assert tokens(p, "hello") == tokens(pods(), "hello")
    assert all(p.processes[w.name].poll() is None for w in others)


def test_a_group_that_is_told_to_go_finishes_what_it_has():
    """SIGTERM comes to all pods of a group at once, in the middle of a stream."""
    p = pods("tensor-parallel")
    group = [w for w in p.manifest.workloads() if w.labels["tandem/pool"] == "decode"]
    router = next(w for w in p.manifest.workloads() if w.is_router)
    before = len(p.log(router))  # what the tests before have seen fail is theirs
    c, answer = open_stream(p, 600)
    for w in reversed(group):
        p.processes[w.name].send_signal(signal.SIGTERM)
    assert rest_of_stream(c, answer) == 600
    for w in group:
        assert p.processes[w.name].wait(30) == 0, (w.name, p.log(w)[-2000:])
        assert not w.is_rank or "rank 0 has said goodbye" in p.log(w), w.name
    log = p.log(router)[before:]
    assert "attempt failed" not in log, log  # it was finished there, not replayed elsewhere
    assert set(p.stop().values()) == {0}
    del SHARED["tensor-parallel"]


def test_the_helm_test_fails_when_no_pair_is_there():
    m = GOLDEN["cpu"]
    p = LocalPods(m, BUILD, tempfile.mkdtemp(dir=SCRATCH), tiny_model())
    router = next(w for w in m.workloads() if w.is_router)
    for name in p.addresses:
        p.addresses[name] = "127.1.1." + p.addresses[name].rsplit(".", 1)[1]
    p.start(router)
    try:
        answers(p, router, "livenessProbe")  # alone it lives, and is not ready
        done = helm_test(p)
        assert done.returncode == 1 and "no usable pair" in done.stderr, (done.stdout, done.stderr)
    finally:
        p.stop()


def allowed_ports(m, w):
    """Port ranges that some ingress rule of a policy lets into the workload's pods."""
    out = []
    for doc in m.of("NetworkPolicy"):
        if matches(doc["spec"]["podSelector"]["matchLabels"], w.labels):
            for rule in doc["spec"].get("ingress", []):
                assert rule["from"], "a rule without peers would let everybody in"
                out += [(p["port"], p.get("endPort", p["port"])) for p in rule["ports"]]
    return out


def only_what_the_policies_let_in(p):
    for w in p.manifest.workloads():
        allowed = allowed_ports(p.manifest, w)
        open_ports = listening(p.processes[w.name].pid)
        assert open_ports, w.name
        for host, port in open_ports:
            assert any(lo <= port <= hi for lo, hi in allowed), f"{w.name} listens on {port}, no policy lets it in"
            assert host != "0.0.0.0", f"{w.name} listens on all interfaces, port {port}"
        joining = w.ports().get("ranks")  # closed when the group stands
        for lo, hi in allowed:
            heard = lo == joining or any(lo <= port <= hi for _, port in open_ports)
            assert heard, f"a policy opens {lo}-{hi} of {w.name}, nobody listens"


def test_what_the_pods_listen_on_is_what_the_network_policy_lets_in():
    only_what_the_policies_let_in(pods())


def series(p, w):
    get = f"http://{p.addresses[w.name]}:{w.ports()['admin']}/metrics"
    return set(re.findall(r"^# TYPE (\S+) ", open_get(get, body=True), re.M))


def test_metrics_that_scale_a_pool_are_served_by_its_pods():
    p = pods()
    by_role = {w.labels["tandem/starts-as"]: series(p, w) for w in p.manifest.workloads()}
    checked = 0
    for name, m in GOLDEN.items():
        for doc in m.of("HorizontalPodAutoscaler", "ScaledObject"):
            target = doc["spec"]["scaleTargetRef"]
            role = Workload(m, m.get(target["kind"], target["name"])).labels["tandem/starts-as"]
            names = [e["pods"]["metric"]["name"] for e in doc["spec"].get("metrics", []) if e["type"] == "Pods"]
            for t in doc["spec"].get("triggers", []):
                if t["type"] == "prometheus":
                    query = re.match(r'sum\(([a-z:_]+)\{namespace="tandem",release="t",pool="[a-z0-9-]+"\}\)$',
                                     t["metadata"]["query"])
                    assert query, t["metadata"]["query"]
                    names.append(query.group(1))
            for metric in names:
                assert metric in by_role[role], f"{name}: {metric} is not served by {role}"
                checked += 1
    assert checked >= 3, checked


def test_a_node_pod_that_is_told_to_go_finishes_what_it_has():
    """Nodes have no preStop: SIGTERM comes at once, as `kubectl delete pod` sends it, in the middle of a stream."""
    p = pods()
    router = next(w for w in p.manifest.workloads() if w.is_router)
    decode, = (w for w in p.manifest.workloads() if w.labels.get("tandem/starts-as") == "decode")
    assert "lifecycle" not in decode.container
    before = len(p.log(router))
    c, answer = open_stream(p, 1800)
    p.processes[decode.name].send_signal(signal.SIGTERM)
    assert rest_of_stream(c, answer) == 1800
    assert p.processes[decode.name].wait(30) == 0, p.log(decode)[-2000:]
    said = p.log(router)[before:]
    assert "attempt failed" not in said, said  # it was finished there, not replayed elsewhere
    log = p.log(decode)
    assert log.index('"draining"') < log.rindex('"dc_stream"') < log.index('"drained"'), log[-2000:]


def test_the_pods_drain_at_sigterm_and_end_without_a_complaint():
    p = pods()
    router = next(w for w in p.manifest.workloads() if w.is_router)
    url = f"http://{p.addresses[router.name]}:8000/v1/models"
    command = router.container["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep" and float(command[1]) > 0
    assert open_get(url) == 200
    p.processes[router.name].send_signal(signal.SIGTERM)
    assert p.processes[router.name].wait(30) == 0, p.log(router)[-2000:]
    statuses = p.stop()
    assert set(statuses.values()) == {0}, statuses
    for w in p.manifest.workloads():
        bad = [line for line in p.log(w).splitlines() if re.search(r"\"level\":\"(warn|error)\"", line)]
        # The decode pod has left before: UCX may say on the prefill pod that nobody is there any more.
        bad = [line for line in bad if '"msg":"ucx says"' not in line or not re.search("Connection refused|somaxconn", line)]
        assert not bad, (w.name, bad[:5])
    del SHARED["cpu"]


def test_the_cluster_secret_rotates_in_three_rollouts_without_losing_a_node():
    """The lists of clusterSecret.keyIds that operations.md tells to upgrade through, pod by pod in any order of a roll-out."""
    with cluster(prefill=1, decode=1) as cl:
        secret = {"k1": "a" * 32, "k2": "b" * 32}

        def roll(*ids):
            with open(cl.key_file, "w", encoding="ascii") as f:
                f.write("".join(f"{i} {secret[i]}\n" for i in ids))
            for name in ("prefill-0", "router", "decode-0"):
                if name == "router":
                    assert cl.router.stop() == 0
                    cl.router = cl.make_router().start()
                else:
                    assert cl.nodes[name].stop() == 0
                    cl.restart(name)
                cl.wait_ready(1, 1, 30)
                answer = chat(cl.router.port("http"))
                assert answer.status == 200, (ids, name, answer.body)
        with open(cl.key_file, encoding="ascii") as f:
            first, value = f.read().split()
        secret[first] = value
        for ids in ((first, "k1"), ("k1", first), ("k1",), ("k1", "k2"), ("k2", "k1"), ("k2",)):
            roll(*ids)


# ---- the init container that fetches ----

class Files(http.server.BaseHTTPRequestHandler):
    content, asked, token = {}, [], None

    def do_GET(self):
        Files.asked.append(self.path)
        body = Files.content.get(self.path)
        if body is None or (Files.token and self.headers.get("Authorization") != f"Bearer {Files.token}"):
            self.send_error(404 if body is None else 401)
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def fetch(server, folder, lines, token=None):
    """Runs files/fetch.sh as the init container does."""
    os.makedirs(folder, exist_ok=True)
    listing = os.path.join(SCRATCH, "list")
    with open(listing, "w", encoding="ascii") as f:
        f.write("\n" + "\n".join(f"{name} {sha} http://127.0.0.1:{server.server_port}/{name}" for name, sha in lines) + "\n")
    env = dict(os.environ, MODEL_DIR=folder, FETCH_LIST=listing, HOSTNAME="pod-1", no_proxy="127.0.0.1")
    if token:
        env["FETCH_TOKEN_FILE"] = os.path.join(SCRATCH, "token")
        with open(env["FETCH_TOKEN_FILE"], "w", encoding="ascii") as f:
            f.write(token + "\n")
    return subprocess.run(["/bin/sh", os.path.join(CHART, "files", "fetch.sh")], env=env, capture_output=True, text=True,
                          timeout=60)


def test_the_init_container_fetches_verifies_and_does_not_fetch_twice():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        Files.content = {"/a.gguf": b"A" * 100000, "/sub/b.json": b"{}"}
        Files.token = "s3cret"
        lines = [(n[1:], hashlib.sha256(c).hexdigest()) for n, c in Files.content.items()]
        folder = os.path.join(SCRATCH, "models")
        done = fetch(server, folder, lines, "wrong")
        assert done.returncode != 0 and not os.path.exists(os.path.join(folder, "a.gguf")), done.stdout
        done = fetch(server, folder, lines, "s3cret")
        assert done.returncode == 0, done.stderr
        with open(os.path.join(folder, "sub", "b.json"), "rb") as f:
            assert f.read() == b"{}"
        asked = len(Files.asked)
        done = fetch(server, folder, lines, "s3cret")
        assert done.returncode == 0 and "have a.gguf" in done.stdout and len(Files.asked) == asked, done.stdout
        done = fetch(server, folder, [("a.gguf", "0" * 64)], "s3cret")
        assert done.returncode != 0 and "SHA-256" in done.stderr, (done.stdout, done.stderr)
        left = [n for n in os.listdir(folder) if n.endswith(".part")]
        assert not left, left
    finally:
        server.shutdown()
        server.server_close()


def test_the_rendered_init_container_is_that_script_with_the_listed_files():
    m = GOLDEN["autoscaled"]
    for w in m.workloads():
        init, = w.spec["initContainers"]
        assert init["command"] == ["/bin/sh", "/etc/tandem/fetch/fetch.sh"], init["command"]
        data = m.data("ConfigMap", next(v for v in w.spec["volumes"] if v["name"] == "fetch")["configMap"]["name"])
        with open(os.path.join(CHART, "files", "fetch.sh"), encoding="utf-8") as f:
            assert data["fetch.sh"].strip() == f.read().strip()
        assert data["list"].split() == ["model.gguf", "4" * 64, "https://models.example/smol/model.gguf"], data["list"]
        assert not [mount for mount in init["volumeMounts"] if mount["name"] == "model" and mount.get("readOnly")], "cannot write"
        assert [mount for mount in w.container["volumeMounts"] if mount["name"] == "model" and mount["readOnly"]]


run(globals())
