"""nghttp2's load generator against both public ports of a cluster: thousands of requests over HTTP/1.1 and of gRPC calls over
HTTP/2, all answered, none of them with an error, no block left, memory bounded. Prints rates; asserts counts only.

Environment: TANDEM_BUILD; h2load in PATH. Standard library only.
"""
import json
import os
import re
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "integration"))
from h2_frames import generate  # noqa: E402
from harness import all_blocks_back, cluster, request, wait_for  # noqa: E402

MEMORY_MIB = 96  # that all of it may add to the router
EMPTY = b"\0\0\0\0\0"  # a gRPC message without fields
CALL = ["-H", "content-type: application/grpc", "-H", "te: trailers"]


def resident(process):
    with open(f"/proc/{process.proc.pid}/status", encoding="ascii") as f:
        return int(next(line for line in f if line.startswith("VmRSS")).split()[1]) / 1024


def h2load(url, body, n, *args):
    """Sends n requests, with a body or as GET; every one must succeed. The rate that it tells."""
    with tempfile.NamedTemporaryFile() as f:
        f.write(body)
        f.flush()
        post = ["-d", f.name] if body else []
        done = subprocess.run(["h2load", "-n", str(n), *post, *args, url], capture_output=True, text=True, timeout=300)
    told = re.search(r"(\d+) total, .* (\d+) done, (\d+) succeeded, (\d+) failed, (\d+) errored, (\d+) timeout", done.stdout)
    assert done.returncode == 0 and told, done.stdout + done.stderr
    assert [int(x) for x in told.groups()] == [n, n, n, 0, 0, 0], done.stdout
    assert f"status codes: {n} 2xx" in done.stdout, done.stdout
    return re.search(r"([\d.]+) req/s", done.stdout)[1]


def calls(cl):
    """{(method, status): count} of the router's gRPC port."""
    out = {}
    for key, value in cl.metrics(cl.router).items():
        m = re.search(r'^tandem_router_grpc_requests_total\{.*grpc_method="(\w+)",grpc_code="(\w+)"', key)
        if m:
            out[m.groups()] = out.get(m.groups(), 0) + value
    return out


def main():
    with cluster(2, 2, time_scale=1) as cl:
        http, grpc = (f"http://127.0.0.1:{cl.router.port(p)}" for p in ("http", "grpc"))
        body = json.dumps({"prompt": "hello", "max_tokens": 4, "temperature": 0, "ignore_eos": True}).encode()
        assert request(cl.router.port("http"), "POST", "/v1/completions", body).status == 200
        before = resident(cl.router)
        json_head = ["-H", "content-type: application/json"]
        rates = {
            "GET /v1/models, HTTP/1.1": h2load(http + "/v1/models", b"", 5000, "--h1", "-c", "50"),
            "POST /v1/completions, HTTP/1.1": h2load(http + "/v1/completions", body, 2000, "--h1", "-c", "64", *json_head),
            "ListModels": h2load(grpc + "/tandem.v1.Engine/ListModels", EMPTY, 20000, "-c", "20", "-m", "50", *CALL),
            "Tokenize": h2load(grpc + "/tandem.v1.Engine/Tokenize", b"\0\0\0\0\7\x12\5hello", 5000, "-c", "10", "-m", "10", *CALL),
            "Generate": h2load(grpc + "/tandem.v1.Engine/Generate", generate("hello", 4), 2000, "-c", "16", "-m", "4", *CALL),
            "Generate, windows of 255 bytes": h2load(grpc + "/tandem.v1.Engine/Generate", generate("hello", 16), 500, "-c", "8",
                                                     "-m", "4", "-w", "8", "-W", "8", *CALL),
        }
        for node in cl.nodes.values():
            all_blocks_back(cl, node)
        wait_for(lambda: not cl.admin("/requests")["live"], 30, "the requests to end")
        want = {("ListModels", "OK"): 20000, ("Tokenize", "OK"): 5000, ("Generate", "OK"): 2500}
        assert calls(cl) == want, calls(cl)
        grown = resident(cl.router) - before
        assert grown < MEMORY_MIB, grown
        assert set(cl.stop().values()) == {0}
    for what, rate in rates.items():
        print(f"{what}: {rate} a second")
    print(f"{7000 + 27500} requests answered, every block back, the router grew by {grown:.0f} MiB")


if __name__ == "__main__":
    main()
