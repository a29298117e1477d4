"""gRPC clients of other languages, with Debian's own libraries: the .proto files compile unchanged for Python, C++ and Go, all of
it builds, and the two clients of this folder (grpc_client.cc, grpc_client.go) get the tokens that HTTP gives, in cleartext and
over TLS; what they cancel gives its blocks back.

Environment: TANDEM_BUILD, TANDEM_CLIENTS (a folder that keeps what was built, by its sources). Standard library only.
"""
import hashlib
import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from harness import ROOT, all_blocks_back, certificate, cluster, tokens_of, wait_for  # noqa: E402

PROTO = os.path.join(ROOT, "proto")
PUBLIC = sorted(n for n in os.listdir(PROTO) if n.endswith(".proto") and n != "wire.proto")  # wire.proto is between our processes
PACKAGES = ["libgrpc++-dev", "protobuf-compiler-grpc", "golang-google-grpc-dev", "protoc-gen-go-1-5", "protoc-gen-go-grpc"]
CXX = ["g++", "-std=c++17", "-O0"]
PROMPT, TOKENS = "the same tokens in every language " * 4, 60
# Long enough to be left and to run out of time in the middle.
SLOW = ["--fault", "step.pause=delay:us=2000"]


def run(*args, **options):
    done = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, timeout=300, **options)
    assert done.returncode == 0, (args, done.stdout[-2000:], done.stderr[-4000:])
    return done.stdout


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def digest(*parts):
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def protos():
    """All public .proto files and the versions of what compiles them."""
    return [read(PROTO, n) for n in PUBLIC] + [run("dpkg-query", "-W", *PACKAGES).encode()]


def protoc(out, *options):
    os.makedirs(out, exist_ok=True)
    run("protoc", "-I" + PROTO, *options, *PUBLIC)


def go_options():
    """Where the package of a file goes that does not say so itself."""
    return [f"--{kind}_opt=M{n}=tandem/{n[:-6]}" for n in PUBLIC if b"go_package" not in read(PROTO, n)
            for kind in ("go", "go-grpc")]


def build_python(at):
    out = os.path.join(at, "python")
    protoc(out, f"--python_out={out}", f"--grpc_out={out}", "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin")
    for name in os.listdir(out):
        compile(read(out, name), name, "exec")


def build_cpp(at):
    out = os.path.join(at, "cpp")
    protoc(out, f"--cpp_out={out}", f"--grpc_out={out}", "--plugin=protoc-gen-grpc=/usr/bin/grpc_cpp_plugin")
    units = [n for n in sorted(os.listdir(out)) if n.endswith(".cc")]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(lambda n: run(*CXX, "-c", n, "-o", n + ".o", cwd=out), units))
    run("ar", "rcs", "libapi.a", *[n + ".o" for n in units], cwd=out)


def build_cpp_client(at, to):
    out = os.path.join(at, "cpp")
    run(*CXX, "-I" + out, os.path.join(HERE, "grpc_client.cc"), os.path.join(out, "libapi.a"), "-o", to,
        *run("pkg-config", "--cflags", "--libs", "grpc++", "protobuf").split())


def go(at, *args):
    run("go", *args, env=dict(os.environ, GOPATH=f"{os.path.join(at, 'go')}:/usr/share/gocode", GO111MODULE="off", GOFLAGS="",
                              GOPROXY="off", GOCACHE=os.path.join(os.environ["TANDEM_CLIENTS"], "gocache")))


def build_go(at):
    out = os.path.join(at, "go", "src")
    protoc(out, f"--go_out={out}", f"--go-grpc_out={out}", *go_options())
    go(at, "build", *[os.path.relpath(p, out) for p, _, names in os.walk(out) if any(n.endswith(".go") for n in names)])


def build_go_client(at, to):
    go(at, "vet", os.path.join(HERE, "grpc_client.go"))
    go(at, "build", "-o", to, os.path.join(HERE, "grpc_client.go"))


def once(path, make):
    """Makes what is not there yet; a failure leaves nothing that looks whole."""
    if not os.path.exists(path + ".complete"):
        make()
        open(path + ".complete", "w", encoding="ascii").close()
    return path


def build():
    """The paths of both clients; what was built from these .proto files and sources before is kept."""
    kept, name = os.environ["TANDEM_CLIENTS"], digest(*protos())
    at = os.path.join(kept, name)
    for other in set(os.listdir(kept) if os.path.exists(kept) else []) - {name, "gocache"}:
        shutil.rmtree(os.path.join(kept, other))
    for language, make in (("python", build_python), ("cpp", build_cpp), ("go", build_go)):
        once(os.path.join(at, language), lambda: make(at))
    clients = []
    for name, make in (("grpc_client.cc", build_cpp_client), ("grpc_client.go", build_go_client)):
        path = os.path.join(at, f"{name}-{digest(read(HERE, name))}")
        clients.append(once(path, lambda: make(at, path)))
    return clients


def judge(cl, told, want):
    assert told["health"] == "SERVING" and told["model"] == "tiny", told
    assert {"tandem.v1.Engine", "grpc.health.v1.Health"} <= set(told["services"]), told
    assert told["ids"] == want and all(ids == want for ids in told["async_ids"]), (told, want)
    assert (told["cancel"], told["deadline"], told["bad"]) == ("CANCELLED", "DEADLINE_EXCEEDED", "INVALID_ARGUMENT"), told
    for node in cl.nodes.values():
        all_blocks_back(cl, node)
    wait_for(lambda: not cl.admin("/requests")["live"], 30, "the requests to end")


def main():
    clients = build()
    pem, key = certificate()
    with cluster(node=SLOW, time_scale=1) as cl, cluster(node=SLOW, time_scale=1,
                                                         router=["--tls-cert", pem, "--tls-key", key]) as tls:
        want = tokens_of(cl.router.port("http"), PROMPT, max_tokens=TOKENS, ignore_eos=True)
        for client in clients:
            for one, ca in ((cl, "-"), (tls, pem)):
                address = f"localhost:{one.router.port('grpc')}"
                judge(one, json.loads(run(client, address, ca, PROMPT, str(TOKENS))), want)
    print(f"{len(PUBLIC)} .proto files for 3 languages; C++ and Go clients, cleartext and TLS, got the {TOKENS} tokens of HTTP")


if __name__ == "__main__":
    main()
