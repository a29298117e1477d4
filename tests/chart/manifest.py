"""Rendered manifests: what is in them, and their pods as local processes.

A pod's container runs with its own command, arguments and environment, and with the variables that the LeaderWorkerSet
controller adds. What differs from a cluster is a mapping: the pod's address is one of 127.0.0.0/8, the name of a Service or of a
group's leader becomes its pods' addresses, eth0 is lo, a GPU is the processor, and a mounted path is a folder.
Standard library and PyYAML.
"""
import base64
import os
import re
import subprocess
import time

import yaml

WORKLOADS = ("Deployment", "StatefulSet", "LeaderWorkerSet")


class Manifest:
    def __init__(self, text):
        self.docs = [d for d in yaml.safe_load_all(text) if d]

    @classmethod
    def load(cls, path):
        with open(path, encoding="utf-8") as f:
            return cls(f.read())

    def of(self, *kinds):
        return [d for d in self.docs if d["kind"] in kinds]

    def get(self, kind, name):
        found = [d for d in self.of(kind) if d["metadata"]["name"] == name]
        assert len(found) == 1, f"{kind} {name}: {len(found)} of it"
        return found[0]

    def workloads(self):
        """One of each workload's pods; of a set of groups, the pods of its first group."""
        return [Workload(self, d, index) for d in self.of(*WORKLOADS) for index in range(group_size(d))]

    def pods(self):
        """Every pod template: of workloads, and of bare pods."""
        return [(w.name, w.template) for w in self.workloads()] + [(d["metadata"]["name"], d) for d in self.of("Pod")]

    def selected(self, selector):
        """Workloads whose pods a label selector picks."""
        return [w for w in self.workloads() if matches(selector, w.labels)]

    def data(self, kind, name):
        """Content of a Secret or ConfigMap: {key: text}."""
        doc = self.get(kind, name)
        out = {k: base64.b64decode(v).decode() if kind == "Secret" else v for k, v in (doc.get("data") or {}).items()}
        out.update(doc.get("stringData") or {})
        return out


def matches(selector, labels):
    return all(labels.get(k) == v for k, v in selector.items())


def group_size(doc):
    return doc["spec"]["leaderWorkerTemplate"]["size"] if doc["kind"] == "LeaderWorkerSet" else 1


class Workload:
    """A workload and one of its pods: of a set of groups, the `index`th of its first group."""

    def __init__(self, manifest, doc, index=0):
        self.manifest, self.doc, self.index, self.size = manifest, doc, index, group_size(doc)
        self.name = doc["metadata"]["name"] + (f"-rank-{index}" if index else "")
        self.pod = doc["metadata"]["name"] + "-0" + (f"-{index}" if index else "")  # as the controllers name it
        spec = doc["spec"].get("leaderWorkerTemplate", doc["spec"])
        mine = "leaderTemplate" if index == 0 and "leaderTemplate" in spec else "workerTemplate"
        self.template = spec.get("template") or spec[mine]
        self.labels = self.template["metadata"]["labels"]
        self.spec = self.template["spec"]
        self.container = next(c for c in self.spec["containers"] if c["name"] == "tandem")
        self.program = self.container["command"][0]
        self.component = self.labels["app.kubernetes.io/component"]
        self.is_router = self.component == "router"
        self.is_rank = self.component == "rank"

    @classmethod
    def of_pod(cls, manifest, pod):
        """A bare pod, for its volumes."""
        w = cls.__new__(cls)
        w.manifest, w.doc, w.name, w.template, w.spec = manifest, pod, pod["metadata"]["name"], pod, pod["spec"]
        w.labels, w.container = pod["metadata"]["labels"], pod["spec"]["containers"][0]
        return w

    def ports(self):
        return {p["name"]: p["containerPort"] for p in self.container["ports"]}


# ---- what the kubelet does with a container ----

def cpu(quantity):
    """Whole CPUs, rounded up, as resourceFieldRef with divisor 1 gives them."""
    quantity = str(quantity)
    milli = int(quantity[:-1]) if quantity.endswith("m") else int(float(quantity) * 1000)
    return -(-milli // 1000)


def environment(container, pod, first=None):
    """The container's variables, after those of `first`; `pod` has the fields of the downward API. References to Secrets come
    from `pod` too."""
    env = dict(first or {})
    for e in container.get("env", []):
        source = e.get("valueFrom")
        if source is None:
            env[e["name"]] = expand(str(e.get("value", "")), env)
        elif "fieldRef" in source:
            env[e["name"]] = pod[source["fieldRef"]["fieldPath"]]
        elif "resourceFieldRef" in source:
            kind, what = source["resourceFieldRef"]["resource"].split(".")
            assert what == "cpu", e
            env[e["name"]] = str(cpu(container["resources"][kind][what]))
        else:
            ref = source["secretKeyRef"]
            env[e["name"]] = pod[f"secret {ref['name']}/{ref['key']}"]
    return env


def expand(text, env):
    """$(NAME) of a defined variable; $$(NAME) stays $(NAME)."""
    return re.sub(r"\$(\$?)\(([A-Za-z_][A-Za-z0-9_]*)\)",
                  lambda m: m.group(0)[1:] if m.group(1) else env.get(m.group(2), m.group(0)), text)


def injected(w):
    """What the LeaderWorkerSet controller puts before a container's own variables (0.6 and later)."""
    if w.doc["kind"] != "LeaderWorkerSet":
        return {}
    name, namespace = w.doc["metadata"]["name"], w.doc["metadata"]["namespace"]
    return {"LWS_LEADER_ADDRESS": f"{name}-0.{name}.{namespace}", "LWS_GROUP_SIZE": str(w.size), "LWS_WORKER_INDEX": str(w.index)}


class LocalPods:
    """Addresses, folders and programs for the pods of one manifest."""

    def __init__(self, manifest, build, folder, model):
        self.manifest, self.build, self.folder, self.model = manifest, build, folder, model
        self.addresses, self.processes = {}, {}
        net = os.getpid() % 250 + 2
        for n, w in enumerate(manifest.workloads()):
            self.addresses[w.name] = f"127.{net}.{net}.{n + 1}"

    def binary(self, name):
        for path in (os.path.join(self.build, name), os.path.join(self.build, "router", name)):
            if os.path.exists(path):
                return path
        raise AssertionError(f"{name} is not built in {self.build}")

    def service_addresses(self, host):
        """Addresses behind a Service's DNS name in this manifest."""
        service = self.manifest.get("Service", host.split(".")[0])
        found = self.manifest.selected(service["spec"]["selector"])
        assert found, f"{host} selects no pod"
        return [self.addresses[w.name] for w in found]

    def leader_address(self, host):
        """Address behind the DNS name of a group's leader: its pod, in the headless Service of its set's name."""
        pod, subdomain, namespace = host.split(".")
        service = self.manifest.get("Service", subdomain)
        assert service["metadata"]["namespace"] == namespace, host
        spec = service["spec"]
        assert spec["clusterIP"] == "None" and spec["publishNotReadyAddresses"] is True, f"{host}: not there before it is ready"
        found = [w for w in self.manifest.selected(spec["selector"]) if w.pod == pod]
        assert len(found) == 1, f"{host} resolves to {len(found)} pods"
        return self.addresses[found[0].name]

    def mounts(self, w, container=None):
        """{mount path: local folder}, filled with what the volume holds."""
        out = {}
        volumes = {v["name"]: v for v in w.spec["volumes"]}
        for mount in (container or w.container)["volumeMounts"]:
            volume = volumes[mount["name"]]
            path = os.path.join(self.folder, w.name, mount["name"])
            os.makedirs(path, exist_ok=True)
            for kind, name in (("Secret", (volume.get("secret") or {}).get("secretName")),
                               ("ConfigMap", (volume.get("configMap") or {}).get("name"))):
                if name:
                    for key, text in self.manifest.data(kind, name).items():
                        with open(os.path.join(path, key), "w", encoding="utf-8") as f:
                            f.write(text)
            out[mount["mountPath"]] = path
        return out

    def map_argument(self, arg, mounts):
        """One argument, or several where a Service's name stands for several pods."""
        paths = "|".join(re.escape(p) for p in sorted(mounts, key=len, reverse=True))
        arg = re.sub(rf"(^|=)({paths})(?=/|$)", lambda m: m.group(1) + mounts[m.group(2)], arg)
        arg = arg.replace("--kv-device=eth0", "--kv-device=lo").replace("--backend=cuda", "--backend=cpu")
        m = re.match(r"--node=tcp://([a-z0-9.-]+):(\d+)$", arg)
        if m:
            return [f"--node=tcp://{a}:{m.group(2)}" for a in self.service_addresses(m.group(1))]
        m = re.match(r"--rank-leader=([a-z0-9.-]+):(\d+)$", arg)
        if m:
            return [f"--rank-leader={self.leader_address(m.group(1))}:{m.group(2)}"]
        return [arg]

    def command(self, w):
        """(argv, environment, mounts) of a workload's pod."""
        address = self.addresses[w.name]
        env = environment(w.container, {"metadata.name": w.pod, "status.podIP": address}, injected(w))
        mounts = self.mounts(w)
        env = {k: self.map_argument(v, mounts)[0] for k, v in env.items()}
        argv = [self.binary(w.program)]
        for arg in w.container["args"]:
            argv += self.map_argument(expand(arg, env), mounts)
        for arg in argv:
            if arg.startswith("--model="):
                self.place_model(arg.split("=", 1)[1])
        return argv, env, mounts

    def place_model(self, path):
        if not os.path.exists(path):
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.symlink(self.model, path)

    def start(self, w):
        argv, env, _ = self.command(w)
        log = os.path.join(self.folder, w.name + ".log")
        clean = {k: v for k, v in os.environ.items() if not k.startswith("TANDEM_")}
        with open(log, "ab") as f:
            # /tmp as in the pod: nothing of it is shared; the pod's environment and nothing of the test's.
            self.processes[w.name] = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=f, stderr=f,
                                                      env=dict(clean, **env), cwd="/")
        return self.processes[w.name]

    def log(self, w):
        with open(os.path.join(self.folder, w.name + ".log"), encoding="utf-8", errors="replace") as f:
            return f.read()

    def stop(self):
        """SIGTERM for all; exit statuses by name."""
        for p in self.processes.values():
            if p.poll() is None:
                p.terminate()
        out = {}
        for name, p in self.processes.items():
            try:
                out[name] = p.wait(30)
            except subprocess.TimeoutExpired:
                p.kill()
                p.wait()
                out[name] = None
        return out


def until(condition, seconds, what):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            if condition():
                return
        except OSError:
            pass
        time.sleep(0.05)
    raise AssertionError(f"waited {seconds} s for {what}")


def listening(pid):
    """{(address, port)} on which a process listens, TCP over IPv4."""
    inodes = set()
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            m = re.match(r"socket:\[(\d+)\]", os.readlink(f"/proc/{pid}/fd/{fd}"))
        except OSError:
            continue
        if m:
            inodes.add(m.group(1))
    out = set()
    with open(f"/proc/{pid}/net/tcp", encoding="ascii") as f:
        for line in f.read().splitlines()[1:]:
            field = line.split()
            if field[3] == "0A" and field[9] in inodes:
                host, port = field[1].split(":")
                out.add((".".join(str(b) for b in reversed(bytes.fromhex(host))), int(port, 16)))
    return out
