#!/usr/bin/env python3
"""The main job on one machine: router, prefill node and decode node answer a question; `up` leaves them running.

Usage: demo.py --build DIR --model PATH [--question TEXT]
       demo.py --build DIR --model PATH --up [--prefill N] [--decode M] [--tp N] [--port PORT]
"""
import argparse
import os
import signal
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from cluster import Cluster, ClusterError, stream_chat  # noqa: E402

QUESTION = "What is photosynthesis?"


def say(text):
    print("==> " + text, file=sys.stderr, flush=True)


def ms(us):
    return f"{us / 1000:.1f} ms"


def show_stages(record):
    mib = record["kv_bytes"] / 1048576
    print(f"\n\nrouter queue {ms(record['router_queue_us'])} | prefill {ms(record['prefill_us'])} "
          f"({record['prompt_tokens']} tokens) | transfer {ms(record['transfer_us'])}, "
          f"exposed {ms(record['transfer_exposed_us'])} | first token {ms(record['ttft_us'])} | "
          f"per token {ms(record['tpot_us'])} ({record['output_tokens']} tokens) | "
          f"KV {mib:.2f} MiB by {record['transport']} from {record['prefill']} to {record['decode']}", flush=True)


def finished_record(cluster, request_id):
    for _ in range(100):  # the nodes' last words may come a moment after the last token
        for record in cluster.admin("/requests")["finished"]:
            if record["request_id"] == request_id:
                return record
        time.sleep(0.02)
    raise ClusterError("the router does not remember the request")


def ask(cluster, question):
    body = {"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 120, "stream": True}
    print(f"\n\033[1m{question}\033[0m\n" if sys.stdout.isatty() else f"\n{question}\n", flush=True)
    for _, event in stream_chat(cluster.url(), body, {"x-request-id": "demo"}):
        if "error" in event:
            raise ClusterError(event["error"]["message"])
        for choice in event["choices"]:
            print(choice["delta"].get("content", ""), end="", flush=True)
    show_stages(finished_record(cluster, "demo"))


def demo(args):
    say("starting a router, a prefill node and a decode node on loopback")
    cluster = Cluster(args.build, args.model, "smollm2-135m-instruct")
    with cluster:
        say(f"ready; logs in {cluster.folder}")
        ask(cluster, args.question)
        say("stopping all three")
        status = cluster.stop()
    bad = {name: s for name, s in status.items() if s != 0}
    if bad:
        raise ClusterError(f"did not stop cleanly: {bad}; logs in {cluster.folder}")
    say("stopped cleanly")


def served_name(path):
    """The name that clients use: of the directory, or of the file without what follows the first dot."""
    name = os.path.basename(os.path.realpath(path)).lower()
    return name if os.path.isdir(path) else name.split(".")[0]


def up(args):
    name = served_name(args.model)
    of = f", each of {args.tp} processes," if args.tp > 1 else ""
    say(f"starting a router, {args.prefill} prefill and {args.decode} decode nodes{of} on loopback")
    cluster = Cluster(args.build, args.model, name, args.prefill, args.decode, tp={"prefill": args.tp, "decode": args.tp},
                      ports={"http": args.port, "admin": args.port + 1 if args.port else 0,
                             "grpc": args.port + 2 if args.port else 0})
    with cluster:
        print(f"""
ready: {cluster.url()}   gRPC: 127.0.0.1:{cluster.router.port('grpc')} (docs/grpc.md)
admin: http://127.0.0.1:{cluster.router.port('admin')}   logs: {cluster.folder}

curl -N {cluster.url()}/v1/chat/completions -H 'Content-Type: application/json' \\
  -d '{{"model":"{name}","stream":true,"messages":[{{"role":"user","content":"{QUESTION}"}}]}}'

Ctrl-C stops everything.""", flush=True)
        try:
            while cluster.router.alive():
                time.sleep(0.5)
            raise ClusterError("the router ended:\n" + cluster.router.log()[-2000:])
        except KeyboardInterrupt:
            pass
        say("stopping")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--build", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--question", default=QUESTION)
    p.add_argument("--up", action="store_true")
    p.add_argument("--prefill", type=int, default=1)
    p.add_argument("--decode", type=int, default=1)
    p.add_argument("--tp", type=int, default=1, help="processes that compute each node's model together")
    p.add_argument("--port", type=int, default=8000)
    args = p.parse_args()
    for signo in (signal.SIGTERM, signal.SIGHUP):  # leave by the with blocks, which stop the processes
        signal.signal(signo, lambda signo, _: sys.exit(0 if args.up else 128 + signo))
    try:
        (up if args.up else demo)(args)
    except (ClusterError, OSError) as e:
        sys.exit(f"demo: {e}")
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    main()
