"""An image, built from its Dockerfile, and the chart's pods in it as a cluster would run them.

    image_test.py [--build Dockerfile.cuda] [TEST...]     Dockerfile.cpu, unless another is named

Run by ./dev check image (root, debootstrap). Every pod of the rendering `cpu` gets the image as its root, read-only, its
volumes at their real paths, uid 10001 without a capability, and a network namespace with eth0 and an address of its own;
arguments and environment are the rendering's, unchanged. Services are names in /etc/hosts, and the rendering's NetworkPolicies
are enforced by nftables in each pod's namespace, as a network plugin does. Standard library and PyYAML.
"""
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
for folder in ("integration", "chart"):
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), folder))
from dockerfile import Builder, Mounted  # noqa: E402
from harness import BUILD, ROOT, SCRATCH, open_get, run, tiny_model  # noqa: E402
from manifest import LocalPods, Manifest, environment, expand, listening, matches, until  # noqa: E402

CACHE = os.environ["TANDEM_IMAGES"]
UID = 10001
ARGV = list(sys.argv)
DOCKERFILE = "Dockerfile.cpu"
if "--build" in sys.argv:
    option = sys.argv.index("--build")
    DOCKERFILE = sys.argv[option + 1]
    del sys.argv[option:option + 2]

if os.environ.get("TANDEM_IMAGE_INSIDE") != "1":
    # Built out here, where the network is; then a network and mounts of our own: nothing of it outlives this process.
    Builder(ROOT, CACHE).build("deploy/docker/" + DOCKERFILE)
    os.environ["TANDEM_IMAGE_INSIDE"] = "1"
    os.execvp("unshare", ["unshare", "--net", "--mount", sys.executable, *ARGV])

IMAGE = []


def image():
    if not IMAGE:
        IMAGE.append(Builder(ROOT, CACHE).build("deploy/docker/" + DOCKERFILE))
    return IMAGE[0]


def sh(script, *args):
    subprocess.run(["/bin/sh", "-ec", script, "sh", *args], check=True, stdout=subprocess.DEVNULL)


class ImagePods(LocalPods):
    """Pods in the image, each in a network namespace on one bridge."""

    def __init__(self, manifest, model):
        super().__init__(manifest, BUILD, tempfile.mkdtemp(dir=SCRATCH), model)
        os.chmod(SCRATCH, 0o755)
        os.chmod(self.folder, 0o755)
        sh("mount -t tmpfs none /run; ip link set lo up; ip link add br0 type bridge; ip addr add 10.77.0.1/24 dev br0; "
           "ip link set br0 up")
        self.hosts = os.path.join(self.folder, "hosts")
        self.addresses, self.actors = {}, {}
        for w in manifest.workloads():
            self.add_address(w.name, w.labels)
        self.write_hosts()

    def add_address(self, pod, labels=None, namespace="tandem"):
        """A network namespace with an address; the policies then count this pod in."""
        self.make_address(pod)
        self.actors[pod] = (namespace, labels or {})
        for name in self.actors:
            enforce(self, name)

    def make_address(self, pod):
        n = len(self.addresses) + 2
        self.addresses[pod] = f"10.77.0.{n}"
        sh("ip netns add $1; ip link add v$2 type veth peer name eth0 netns $1; ip link set v$2 master br0 up; "
           "ip -n $1 addr add 10.77.0.$2/24 dev eth0; ip -n $1 link set eth0 up; ip -n $1 link set lo up", pod, str(n))

    def write_hosts(self, more=None):
        """Names of Services as the cluster's DNS would answer; in place, because it is mounted into running pods."""
        lines = ["127.0.0.1 localhost"]
        for service in self.manifest.of("Service"):
            name = service["metadata"]["name"]
            for w in self.manifest.selected(service["spec"]["selector"]):
                for pod in [w.name] + (more or {}).get(w.name, []):
                    lines.append(f"{self.addresses[pod]} {name} {name}.tandem.svc")
        with open(self.hosts, "w", encoding="ascii") as f:
            f.write("\n".join(lines) + "\n")

    def volume_folders(self, w, pod, container=None):
        """{mount path: (folder, read-only)}; files owned as the kubelet does with fsGroup."""
        saved, w.name = w.name, pod
        try:
            out = self.mounts(w, container)
        finally:
            w.name = saved
        for path, folder in out.items():
            mount = next(m for m in (container or w.container)["volumeMounts"] if m["mountPath"] == path)
            writable = not mount.get("readOnly")
            os.chown(folder, 0, UID)
            os.chmod(folder, 0o2770 if writable else 0o2750)
            for name in os.listdir(folder):
                os.chown(os.path.join(folder, name), 0, UID)
                os.chmod(os.path.join(folder, name), 0o440)
            out[path] = (folder, not writable)
        return out

    def popen(self, pod, argv, env, folders, log):
        """argv in the image, in the pod's namespace; the process is argv's own (everything before it is an exec)."""
        layers = ":".join(reversed(image().layers))
        binds = [x for path, (folder, read_only) in folders.items() for x in (path, folder, "ro" if read_only else "rw")]
        # /dev/shm is a mount point of our own /dev, everything else is made in a tmpfs over the image.
        script = """
            layers=$1 hosts=$2; shift 2
            mount -t tmpfs none /mnt; mkdir /mnt/up /mnt/work /mnt/root
            mount -t overlay overlay -o lowerdir=$layers,upperdir=/mnt/up,workdir=/mnt/work /mnt/root
            mount --rbind /proc /mnt/root/proc; mount -t sysfs -o ro sysfs /mnt/root/sys; mount -t tmpfs none /mnt/root/dev
            for d in null zero urandom random; do touch /mnt/root/dev/$d; mount --bind /dev/$d /mnt/root/dev/$d; done
            touch /mnt/root/etc/hosts; mount --bind "$hosts" /mnt/root/etc/hosts
            while [ "$1" != -- ]; do
                mkdir -p "/mnt/root$1"; mount --bind "$2" "/mnt/root$1"
                [ $3 = rw ] || mount -o remount,bind,ro "/mnt/root$1"
                shift 3
            done
            shift
            mount -o remount,ro /mnt/root; mount -o remount,ro /mnt/root/dev
            exec chroot /mnt/root /usr/bin/setpriv --reuid %d --regid %d --groups %d --no-new-privs --bounding-set=-all \
                --inh-caps=-all "$@" """ % (UID, UID, UID)
        return subprocess.Popen(["ip", "netns", "exec", pod, "unshare", "--mount", "/bin/sh", "-ec", script, "sh", layers,
                                 self.hosts, *binds, "--", *argv], stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                env=dict(env, PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"))

    def start_pod(self, w, pod=None):
        pod = pod or w.name
        env = environment(w.container, {"metadata.name": pod, "status.podIP": self.addresses[pod]})
        argv = w.container["command"] + [expand(a, env) for a in w.container["args"]]
        folders = self.volume_folders(w, pod)
        shutil.copy(self.model, os.path.join(folders["/model"][0], "model.gguf"))
        with open(os.path.join(self.folder, pod + ".log"), "ab") as log:
            self.processes[pod] = self.popen(pod, argv, env, folders, log)
        self.wait_for_probe(w, pod, "startupProbe")

    def wait_for_probe(self, w, pod, probe):
        get = w.container[probe]["httpGet"]
        url = f"http://{self.addresses[pod]}:{w.ports()[get['port']]}{get['path']}"

        def once():
            assert self.processes[pod].poll() is None, self.pod_log(pod)
            return open_get(url) == 200
        until(once, 60, f"{probe} of {pod}")

    def pod_log(self, pod):
        with open(os.path.join(self.folder, pod + ".log"), encoding="utf-8", errors="replace") as f:
            return f.read()[-3000:]

    def run_once(self, pod, argv, env, folders):
        with tempfile.TemporaryFile(dir=SCRATCH) as out:
            status = self.popen(pod, argv, env, folders, out).wait(120)
            out.seek(0)
            return status, out.read().decode()


# ---- NetworkPolicies as a plugin enforces them: per pod, deny what no rule of a selecting policy allows ----

def peer_addresses(p, peers):
    """Addresses that a rule's from/to names; no peers: everybody."""
    if not peers:
        return ["0.0.0.0/0"]
    out = []
    for peer in peers:
        if "ipBlock" in peer:
            out.append(peer["ipBlock"]["cidr"])
            continue
        spaces = (peer.get("namespaceSelector") or {}).get("matchLabels")
        labels = (peer.get("podSelector") or {}).get("matchLabels", {})
        for name, (namespace, have) in p.actors.items():
            inside = namespace == "tandem" if spaces is None else matches(spaces, {"kubernetes.io/metadata.name": namespace})
            if inside and matches(labels, have):
                out.append(p.addresses[name])
    return out


def chain(p, policies, direction):
    """nft statements of one direction, or none where no policy governs it."""
    field, side, hook = ("ingress", "from", "input") if direction == "Ingress" else ("egress", "to", "output")
    governing = [d["spec"] for d in policies if direction in d["spec"]["policyTypes"]]
    if not governing:
        return ""
    word = "saddr" if direction == "Ingress" else "daddr"
    lines = ["ct state established,related accept", "iif lo accept" if hook == "input" else "oif lo accept"]
    if hook == "input":
        lines.append("ip saddr 10.77.0.1 accept")  # the kubelet's probes
    for spec in governing:
        for rule in spec.get(field, []):
            for address in peer_addresses(p, rule.get(side)):
                for port in rule["ports"]:
                    last = f"-{port['endPort']}" if "endPort" in port else ""
                    lines.append(f"ip {word} {address} {port['protocol'].lower()} dport {port['port']}{last} accept")
    body = "\n".join(lines)
    return f"chain {hook} {{ type filter hook {hook} priority 0; policy drop;\n{body}\n}}\n"


def enforce(p, pod):
    namespace, labels = p.actors[pod]
    policies = [d for d in p.manifest.of("NetworkPolicy")
                if namespace == "tandem" and matches(d["spec"]["podSelector"]["matchLabels"], labels)]
    rules = "table inet np\ndelete table inet np\ntable inet np {\n" + chain(p, policies, "Ingress") \
        + chain(p, policies, "Egress") + "}\n"
    done = subprocess.run(["ip", "netns", "exec", pod, "nft", "-f", "-"], input=rules, text=True, capture_output=True, check=False)
    assert done.returncode == 0, (rules, done.stderr)


def reached(p, actor, targets):
    """Which (address, port) a process in the actor's namespace connects to; all tried at once, for half a second."""
    script = ("import json,select,socket,sys\nopen_=[]\nfor host,port in json.loads(sys.argv[1]):\n"
              " s=socket.socket(); s.setblocking(False); s.connect_ex((host,port)); open_.append((s,host,port))\n"
              "import time; time.sleep(0.5)\n_,w,_=select.select([],[s for s,_,_ in open_],[],0)\n"
              "print(json.dumps([[h,p] for s,h,p in open_ if s in w and s.getsockopt(socket.SOL_SOCKET,socket.SO_ERROR)==0]))")
    done = subprocess.run(["ip", "netns", "exec", actor, sys.executable, "-c", script, json.dumps(sorted(targets))],
                          capture_output=True, text=True, check=True)
    return {tuple(t) for t in json.loads(done.stdout)}


SHARED = []


def pods():
    if not SHARED:
        m = Manifest.load(os.path.join(ROOT, "tests", "chart", "golden", "cpu.yaml"))
        p = ImagePods(m, tiny_model())
        SHARED.append(p)
        for w in m.workloads():
            p.start_pod(w)
        for w in m.workloads():
            p.wait_for_probe(w, w.name, "readinessProbe")
    return SHARED[0]


def nodes(p):
    told = open_get(f"http://{p.addresses['t-tandem-router']}:8001/nodes", body=True)
    return {n["name"] for n in json.loads(told)["nodes"] if n["ready"]}


def test_the_image_has_what_its_programs_need_and_no_compiler():
    with Mounted(image().layers) as root:
        for name in ("tandem-router", "tandem-prefill", "tandem-decode", "tandemctl"):
            said = subprocess.run(["chroot", root, "/usr/bin/" + name, "--version"], capture_output=True, text=True, check=False)
            assert said.returncode == 0 and name in said.stdout, (name, said.stdout, said.stderr)
            needs = subprocess.run(["chroot", root, "ldd", "/usr/bin/" + name], capture_output=True, text=True, check=True).stdout
            assert "not found" not in needs, needs
        installed = subprocess.run(["chroot", root, "dpkg-query", "-W", "-f", "${Package}\\n"], capture_output=True, text=True,
                                   check=True).stdout.split()
        bad = [p for p in installed if re.search(r"-dev$|^(gcc|g\+\+|cpp|binutils|make|python)", p) and p != "gcc-12-base"]
        assert not bad, bad
        size = int(subprocess.run(["du", "-sm", root], capture_output=True, text=True, check=True).stdout.split()[0])
        print(f"# image: {size} MB, {len(installed)} packages")
    assert image().user == f"{UID}:{UID}"


def test_the_rendered_pods_run_unchanged_in_the_image_and_pass_helm_test():
    p = pods()
    test = p.manifest.get("Pod", "t-tandem-test")
    container = test["spec"]["containers"][0]
    p.add_address("t-tandem-test", test["metadata"]["labels"])
    tmp = tempfile.mkdtemp(dir=SCRATCH)
    os.chown(tmp, 0, UID)
    os.chmod(tmp, 0o2770)
    status, said = p.run_once("t-tandem-test", container["command"] + container["args"], environment(container, {}),
                              {"/tmp": (tmp, False)})
    assert status == 0 and "a chat request is answered" in said, said
    for pod in p.processes:
        with open(f"/proc/{p.processes[pod].pid}/status", encoding="ascii") as f:
            fields = dict(line.split(":\t", 1) for line in f.read().splitlines() if ":\t" in line)
        assert fields["Uid"].split()[0] == str(UID) and int(fields["CapBnd"], 16) == 0, (pod, fields)
        assert fields["NoNewPrivs"] == "1", (pod, fields)


if DOCKERFILE == "Dockerfile.cuda":
    def test_the_cuda_engine_has_its_libraries_and_says_what_a_machine_without_a_gpu_lacks():
        with Mounted(image().layers) as root:
            needs = subprocess.run(["chroot", root, "ldd", "/usr/lib/x86_64-linux-gnu/libcublasLt.so.13"], capture_output=True,
                                   text=True, check=True).stdout
            assert "not found" not in needs, needs
        p = pods()
        p.make_address("gpu")
        folder = tempfile.mkdtemp(dir=SCRATCH)
        shutil.copy(tiny_model(kind="f16"), os.path.join(folder, "model.gguf"))
        os.chmod(folder, 0o755)
        argv = ["tandem-decode", "--role=both", "--backend=cuda", "--model=/model/model.gguf", "--router-admin-port=8001"]
        status, said = p.run_once("gpu", argv, {}, {"/model": (folder, True)})
        assert status == 1 and "CUDA driver version is insufficient" in said and "nvidia-smi shows driver and GPUs" in said, said


def test_kv_went_over_tcp_between_the_pods_addresses():
    p = pods()
    text = open_get(f"http://{p.addresses['t-tandem-prefill']}:8100/metrics", body=True)
    moved = re.findall(r'^tandem_node_kv_transfer_transport_bytes_total\{[^}]*transport="([a-z_0-9]+)"[^}]*\} (\S+)$', text, re.M)
    assert [t for t, v in moved if float(v) > 0] == ["tcp"], moved


def test_a_pod_that_a_service_gains_joins_without_a_restart():
    p = pods()
    before = nodes(p)
    decode = next(w for w in p.manifest.workloads() if w.labels["tandem/starts-as"] == "decode")
    p.add_address("t-tandem-decode-2", decode.labels)
    p.start_pod(decode, "t-tandem-decode-2")
    p.write_hosts({decode.name: ["t-tandem-decode-2"]})
    until(lambda: nodes(p) == before | {"t-tandem-decode-2"}, 30, "the router to find the new address")


def test_the_policies_let_in_whom_they_name_and_nobody_else():
    p = pods()
    prefill, decode, router = (p.addresses["t-tandem-" + n] for n in ("prefill", "decode", "router"))
    kv = {(a, port) for name in ("prefill", "decode") for a, port in listening(p.processes["t-tandem-" + name].pid) if port >= 8110}
    assert len(kv) == 2, kv
    every = kv | {(a, port) for a in (prefill, decode) for port in (8100, 8101)} | {(router, port) for port in (8000, 8001, 8002)}
    for actor, namespace in (("neighbour", "tandem"), ("stranger", "elsewhere"), ("prometheus", "monitoring")):
        p.add_address(actor, {}, namespace)
    clients, admin = {(router, 8000), (router, 8002)}, {(router, 8001), (prefill, 8100), (decode, 8100)}
    assert reached(p, "stranger", every) == set()
    assert reached(p, "neighbour", every) == clients, "a pod of the namespace is a client, no more"
    assert reached(p, "prometheus", every) == admin
    assert reached(p, "t-tandem-router", every - clients - {(router, 8001)}) == {(prefill, 8101), (decode, 8101)}
    assert reached(p, "t-tandem-prefill", every) & {t for t in every if t[0] != prefill} == {t for t in kv if t[0] == decode}


def test_the_init_container_fetches_with_the_images_own_tools():
    p = pods()
    m = Manifest.load(os.path.join(ROOT, "tests", "chart", "golden", "autoscaled.yaml"))
    w = m.workloads()[0]
    init = w.spec["initContainers"][0]
    body = b"model"

    class Files(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("10.77.0.1", 0), Files)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    p.make_address("fetch")
    q, p.manifest = p.manifest, m
    try:
        folders = p.volume_folders(w, "fetch", init)
    finally:
        p.manifest = q
    listing = os.path.join(folders["/etc/tandem/fetch"][0], "list")
    os.chmod(listing, 0o640)
    with open(listing, "w", encoding="ascii") as f:
        f.write(f"model.gguf {hashlib.sha256(body).hexdigest()} http://10.77.0.1:{server.server_port}/model.gguf\n")
    status, said = p.run_once("fetch", init["command"], environment(init, {}), folders)
    server.shutdown()
    server.server_close()
    assert status == 0, said
    with open(os.path.join(folders["/model"][0], "model.gguf"), "rb") as f:
        assert f.read() == body


def test_the_pods_end_cleanly_at_sigterm():
    p = pods()
    statuses = p.stop()
    assert set(statuses.values()) == {0}, (statuses, {n: p.pod_log(n) for n, s in statuses.items() if s != 0})


run(globals())
