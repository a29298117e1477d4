"""The gRPC port with stock clients (grpcio, sync and async): services, statuses, cancellation, limits.

Needs the pinned packages of tests/requirements.txt (TANDEM_TEST_PYTHON); stubs are made from proto/tandem.proto, unchanged.
"""
import os
import subprocess
import sys

PINNED = os.environ.get("TANDEM_TEST_PYTHON", sys.executable)
if os.path.abspath(sys.executable) != os.path.abspath(PINNED):
    os.execv(PINNED, [PINNED] + sys.argv)  # the interpreter that has the packages

import asyncio  # noqa: E402
import hashlib  # noqa: E402
import http.client  # noqa: E402
import json  # noqa: E402
import re  # noqa: E402
import shutil  # noqa: E402
import signal  # noqa: E402
import socket  # noqa: E402
import ssl  # noqa: E402
import tempfile  # noqa: E402
import threading  # noqa: E402

from harness import (BUILD, ROOT, SCRATCH, Both, all_blocks_back, chat, cluster, get, issue, open_get, run,  # noqa: E402
                     tiny_model, tokens_of, wait_for)

STUBS = os.path.join(SCRATCH, "stubs")
os.makedirs(STUBS)
subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I" + os.path.join(ROOT, "proto"), "--python_out=" + STUBS,
                "--grpc_python_out=" + STUBS, "tandem.proto"], check=True)
sys.path.insert(0, STUBS)

os.environ["GRPC_VERBOSITY"] = "NONE"  # refused handshakes are part of the tests
import grpc  # noqa: E402
import tandem_pb2 as pb  # noqa: E402
import tandem_pb2_grpc as rpc  # noqa: E402
from google.protobuf import descriptor_pool  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase  # noqa: E402

SHARED = None
WAIT = 30


def shared():
    global SHARED
    if SHARED is None:
        SHARED = cluster().__enter__()
    return SHARED


def channel(cl=None):
    return grpc.insecure_channel(f"127.0.0.1:{(cl or shared()).router.port('grpc')}")


def status_of(call):
    """The code and text of a call that must fail."""
    try:
        call()
    except grpc.RpcError as e:
        return e.code(), e.details()
    raise AssertionError("the call did not fail")


def health(ch, service):
    return health_pb2_grpc.HealthStub(ch).Check(health_pb2.HealthCheckRequest(service=service), timeout=WAIT).status


def test_health_answers_for_readiness_liveness_and_each_role():
    with channel() as ch:
        for service in ("", "readiness", "liveness", "prefill", "decode", "tandem.v1.Engine"):
            assert health(ch, service) == health_pb2.HealthCheckResponse.SERVING, service
        assert status_of(lambda: health(ch, "no.Such"))[0] == grpc.StatusCode.NOT_FOUND


def test_reflection_lists_the_services_and_their_messages():
    with channel() as ch:
        db = ProtoReflectionDescriptorDatabase(ch)
        assert set(db.get_services()) == {
            "tandem.v1.Engine", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection",
            "grpc.reflection.v1alpha.ServerReflection"}, db.get_services()
        pool = descriptor_pool.DescriptorPool(db)
        method = pool.FindServiceByName("tandem.v1.Engine").FindMethodByName("Generate")
        assert method.output_type.full_name == "tandem.v1.GenerateResponse"
        assert pool.FindMessageTypeByName("tandem.v1.GenerateRequest").fields_by_name["chat"].number == 4


def test_models_are_listed():
    with channel() as ch:
        models = rpc.EngineStub(ch).ListModels(pb.ListModelsRequest(), timeout=WAIT).models
        assert [m.id for m in models] == ["tiny"] and models[0].max_model_len > 0


def engine(ch):
    return rpc.EngineStub(ch)


def ask(text="hello", tokens=8, **fields):
    """A greedy GenerateRequest."""
    sampling = dict({"temperature": 0, "max_tokens": tokens}, **fields.pop("sampling", {}))
    if "token_ids" in fields or "chat" in fields:
        return pb.GenerateRequest(sampling=pb.SamplingParams(**sampling), **fields)
    return pb.GenerateRequest(text=text, sampling=pb.SamplingParams(**sampling), **fields)


def user(text):
    return pb.Chat(messages=[pb.ChatMessage(role="user", content=text)])


class Whole:
    """A stream read to its end."""

    def __init__(self, stream, choice=0):
        self.messages = list(stream)
        self.ids, self.text, self.finish, self.usage = [], "", 0, None
        for m in self.messages:
            if m.HasField("usage"):
                assert m is self.messages[-1]
                self.usage = m.usage
            elif m.delta.choice == choice:
                self.ids += m.delta.token_ids
                self.text += m.delta.text
                self.finish = m.delta.finish_reason or self.finish


def blocks_back(cl=None):
    cl = cl or shared()
    for node in cl.nodes.values():
        all_blocks_back(cl, node)


def test_the_same_request_gives_the_same_tokens_as_over_http():
    http = shared().router.port("http")
    with channel() as ch:
        for prompt in ("hello", "the quick brown fox " * 12):
            got = Whole(engine(ch).Generate(ask(prompt, 24), timeout=WAIT))
            assert got.ids == tokens_of(http, prompt), (got.ids, prompt)
            assert got.finish == pb.FINISH_REASON_LENGTH
            assert got.usage.completion_tokens == 24 and got.usage.prompt_tokens > 0
        want = chat(http, "hello", max_tokens=12).json()
        got = Whole(engine(ch).Generate(ask(chat=user("hello"), tokens=12), timeout=WAIT))
        assert got.text == want["choices"][0]["message"]["content"], (got.text, want)
        assert got.usage.prompt_tokens == want["usage"]["prompt_tokens"]


def test_tokens_go_in_and_out_and_back_to_text():
    with channel() as ch:
        e = engine(ch)
        ids = list(e.Tokenize(pb.TokenizeRequest(text="hello world", add_special_tokens=True), timeout=WAIT).token_ids)
        by_text = Whole(e.Generate(ask("hello world", 6), timeout=WAIT))
        by_ids = Whole(e.Generate(ask(token_ids=pb.TokenIds(ids=ids), tokens=6), timeout=WAIT))
        assert by_ids.ids == by_text.ids and by_ids.usage.prompt_tokens == len(ids)
        plain = list(e.Tokenize(pb.TokenizeRequest(text="hello world"), timeout=WAIT).token_ids)
        assert e.Detokenize(pb.DetokenizeRequest(token_ids=plain), timeout=WAIT).text == "hello world"
        templated = e.Tokenize(pb.TokenizeRequest(chat=user("hello")), timeout=WAIT)
        assert len(templated.token_ids) > len(plain) and templated.max_model_len > 0


def test_choices_seeds_and_stops_work_as_over_http():
    with channel() as ch:
        e = engine(ch)
        drawn = {"temperature": 1.0, "seed": 7}
        one = list(e.Generate(ask("hello", 8, sampling=drawn), timeout=WAIT))
        again = list(e.Generate(ask("hello", 8, sampling=drawn), timeout=WAIT))
        strip = [[m.delta.token_ids for m in run_ if m.HasField("delta")] for run_ in (one, again)]
        assert strip[0] == strip[1]
        messages = list(e.Generate(ask("hello", 4, n=3), timeout=WAIT))
        assert {m.delta.choice for m in messages if m.HasField("delta")} == {0, 1, 2}
        whole = Whole(e.Generate(ask("hello", 16), timeout=WAIT)).text
        stop = whole[3:6]
        got = Whole(e.Generate(ask("hello", 16, sampling={"stop": [stop]}), timeout=WAIT))
        assert got.text == whole[:whole.index(stop)] and got.finish == pb.FINISH_REASON_STOP


def test_one_process_with_both_roles_serves_grpc_too():
    with Both() as both, grpc.insecure_channel(f"127.0.0.1:{both.proc.port('grpc')}") as ch:
        assert Whole(engine(ch).Generate(ask("hello", 6), timeout=WAIT)).ids == tokens_of(both.port, "hello", max_tokens=6)


def test_a_prompt_that_no_pool_holds_is_refused_for_good():
    with Both(args=["--kv-blocks", "4"]) as both, grpc.insecure_channel(f"127.0.0.1:{both.proc.port('grpc')}") as ch:
        code, text = status_of(lambda: list(engine(ch).Generate(ask("too long for the pool " * 9, 6), timeout=WAIT)))
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "KV pool" in text, (code, text)
        assert len(Whole(engine(ch).Generate(ask("a", 6), timeout=WAIT)).ids) == 6


def test_the_routers_figures_count_grpc_like_http():
    def figures():
        m = shared().metrics(shared().router)

        def total(name, label=""):
            return sum(v for k, v in m.items() if k.split("{")[0] == name and label in k)

        return (total("tandem_router_requests_total", 'code="200"'), total("tandem_router_response_bytes_total"),
                total("tandem_router_connections"))

    with channel() as ch:
        list(engine(ch).Generate(ask("x", 2), timeout=WAIT))
        requests, sent, _ = figures()
        list(engine(ch).Generate(ask("x", 20), timeout=WAIT))
        wait_for(lambda: figures()[0] == requests + 1, WAIT, "the request to be counted")
        assert figures()[1] > sent + 200
        assert figures()[2] >= 1


def test_the_proto_files_compile_unchanged_for_other_languages():
    """With what protoc brings along; ./dev check clients builds for Go and whole clients."""
    public = [n for n in os.listdir(os.path.join(ROOT, "proto")) if n.endswith(".proto") and n != "wire.proto"]
    for language in ("cpp", "python"):
        folder = tempfile.mkdtemp(dir=SCRATCH)
        subprocess.run(["protoc", "-I" + os.path.join(ROOT, "proto"), f"--{language}_out={folder}"] + public, check=True)
        assert any(files for _, _, files in os.walk(folder)), language


def test_each_bad_request_ends_with_the_status_of_its_kind():
    code = grpc.StatusCode
    rows = [
        (code.INVALID_ARGUMENT, ask("x", sampling={"temperature": -1})),
        (code.INVALID_ARGUMENT, ask("x", sampling={"temperature": float("nan")})),
        (code.INVALID_ARGUMENT, ask("x", sampling={"top_k": -5})),
        (code.INVALID_ARGUMENT, ask("x", sampling={"logit_bias": {-1: 1.0}})),
        (code.INVALID_ARGUMENT, ask("x", sampling={"stop": ["a"] * 17})),
        (code.INVALID_ARGUMENT, ask(token_ids=pb.TokenIds(ids=[]))),
        (code.INVALID_ARGUMENT, ask(token_ids=pb.TokenIds(ids=[-1]))),
        (code.INVALID_ARGUMENT, ask(token_ids=pb.TokenIds(ids=[99999999]))),
        (code.INVALID_ARGUMENT, ask(chat=pb.Chat())),
        (code.INVALID_ARGUMENT, ask(chat=pb.Chat(messages=[pb.ChatMessage(role="nobody", content="x")]))),
        (code.INVALID_ARGUMENT, ask("zero \0 byte")),
        (code.INVALID_ARGUMENT, pb.GenerateRequest()),
        (code.INVALID_ARGUMENT, ask("word " * 5000)),  # the context is too short
        (code.NOT_FOUND, ask("x", model="other")),
        (code.UNIMPLEMENTED, ask("x", adapter="a")),
        (code.UNIMPLEMENTED, ask("x", sampling={"logprobs": 3})),
    ]
    with channel() as ch:
        e = engine(ch)
        for want, request in rows:
            got, text = status_of(lambda: list(e.Generate(request, timeout=WAIT)))
            assert got == want and text, (got, text, want, request)
        for call in (e.Tokenize, e.Detokenize):
            kind = pb.TokenizeRequest if call is e.Tokenize else pb.DetokenizeRequest
            assert status_of(lambda: call(kind(model="other", **({"text": "x"} if call is e.Tokenize else {})),
                                          timeout=WAIT))[0] == code.NOT_FOUND
        assert status_of(lambda: e.Tokenize(pb.TokenizeRequest(), timeout=WAIT))[0] == code.INVALID_ARGUMENT
        assert status_of(lambda: e.Detokenize(pb.DetokenizeRequest(token_ids=[10 ** 8]), timeout=WAIT))[0] \
            == code.INVALID_ARGUMENT
        big = pb.DetokenizeRequest(token_ids=[1 << 20] * (2 << 20))
        assert status_of(lambda: e.Detokenize(big, timeout=WAIT))[0] == code.RESOURCE_EXHAUSTED
        raw = ch.unary_unary("/tandem.v1.Engine/ListModels")
        assert status_of(lambda: raw(b"\xff", timeout=WAIT))[0] == code.INVALID_ARGUMENT
        assert status_of(lambda: list(e.Generate(ask("x", 2000), timeout=0.05)))[0] == code.DEADLINE_EXCEEDED
        slow = ask("x", 2000)
        slow.budget_ms = 30
        assert status_of(lambda: list(e.Generate(slow, timeout=WAIT)))[0] == code.DEADLINE_EXCEEDED
        squeezed = status_of(lambda: list(e.Generate(ask("word " * 200), timeout=WAIT, compression=grpc.Compression.Gzip)))
        assert squeezed[0] == code.UNIMPLEMENTED, squeezed
    blocks_back()


class FlagSpoiler:
    """A way to a server that changes the flag of the first message of a connection to one that gRPC does not know."""

    def __init__(self, port):
        self.port, self.spoiled = port, False
        self.door = socket.create_server(("127.0.0.1", 0))

    def __enter__(self):
        threading.Thread(target=self.serve, daemon=True).start()
        return f"127.0.0.1:{self.door.getsockname()[1]}"

    def __exit__(self, *exc):
        self.door.close()

    def serve(self):
        client, _ = self.door.accept()
        with client, socket.create_connection(("127.0.0.1", self.port)) as server:
            threading.Thread(target=self.copy, args=(server, client), daemon=True).start()
            frames = client.makefile("rb")
            server.sendall(frames.read(24))  # the preface
            while head := frames.read(9):
                payload = frames.read(int.from_bytes(head[:3], "big"))
                if head[3] == 0 and payload and not self.spoiled:
                    payload, self.spoiled = b"\7" + payload[1:], True
                server.sendall(head + payload)

    @staticmethod
    def copy(a, b):
        try:
            while data := a.recv(65536):
                b.sendall(data)
        except OSError:
            pass


def told(call):
    """The status that the server itself gave a call: its trailers came with it."""
    try:
        call()
    except grpc.RpcError as e:
        assert e.trailing_metadata() and "tandem-code" in dict(e.trailing_metadata()), (e.code(), e.details())
        return e.code().name
    raise AssertionError("the call did not fail")


def counted(cl, code):
    """Calls of the router that ended with a status, by its figures."""
    return sum(v for k, v in cl.metrics(cl.router).items()
               if k.startswith("tandem_router_grpc_requests_total{") and f'grpc_code="{code}"' in k)


def keys_file(*lines):
    """Of (name, key, requests a second)."""
    path = os.path.join(tempfile.mkdtemp(dir=SCRATCH), "keys")
    with open(path, "w", encoding="utf-8") as f:
        for name, key, rate in lines:
            f.write(f"{name} {hashlib.sha256(key.encode()).hexdigest()} tenant-{name} 0 {rate} 0 0\n")
    return path


def documented():
    with open(os.path.join(ROOT, "docs", "grpc.md"), encoding="utf-8") as f:
        table = f.read().split("## Statuses")[1].split("\n## ")[0]
    return {line.split("|")[1].strip() for line in table.splitlines() if line.startswith("| ") and "status" not in line[:10]}


def cancelled(e):
    running = e.Generate(ask("x", 1900, sampling={"ignore_eos": True}), timeout=WAIT)
    assert e.Cancel(pb.CancelRequest(id=next(running).id), timeout=WAIT).known
    return list(running)


def two_deaths(cl, e):
    """The node that decodes dies, and the one that takes over."""
    key = [("x-api-key", "secret")]
    running = e.Generate(ask("x", 500, sampling={"ignore_eos": True}), timeout=WAIT, metadata=key)
    for victim in range(2):
        for _ in range(3 + victim):
            next(running)
        live = cl.admin("/requests")["live"]
        cl.nodes[live[0]["decode"]].kill()
    return list(running)


def no_node(cl, e):
    wait_for(lambda: http_status(cl, "/readyz") == 503, WAIT, "the router to notice")
    return list(e.Generate(ask("x"), timeout=WAIT, metadata=[("x-api-key", "secret")]))


def without_a_certificate(cl):
    """The status and the count of a call to an admin port that wants a certificate."""
    folder = tempfile.mkdtemp(dir=SCRATCH)
    issue(folder, "ca")
    issue(folder, "server", "ca")
    router = cl.make_router("router-tls")
    for option, name in (("cert", "server.pem"), ("key", "server.key"), ("client-ca", "ca.pem")):
        router.argv += ["--admin-tls-" + option, os.path.join(folder, name)]
    router.start()
    try:
        root = grpc.ssl_channel_credentials(read(folder, "ca.pem"))
        with grpc.secure_channel(f"127.0.0.1:{router.port('admin')}", root) as ch:
            code = told(lambda: rpc.AdminStub(ch).ListNodes(pb.ListNodesRequest(), timeout=WAIT))
        line = 'grpc_service="tandem.v1.Admin",grpc_method="ListNodes",grpc_code="PERMISSION_DENIED"} 1\n'
        assert line in get(router.port("http"), "/metrics")[1]
        return code
    finally:
        router.stop()


def http_status(cl, path):
    return open_get(f"http://127.0.0.1:{cl.router.port('admin')}{path}")


def test_every_documented_status_is_provoked_and_counted():
    seen = set()

    def provoke(cl, want, call):
        before = counted(cl, want)
        assert told(call) == want
        assert counted(cl, want) == before + 1, want
        seen.add(want)

    with channel() as ch:
        e, cl = engine(ch), shared()
        with FlagSpoiler(cl.router.port("grpc")) as address, grpc.insecure_channel(address) as bad:
            provoke(cl, "INTERNAL", lambda: engine(bad).ListModels(pb.ListModelsRequest(), timeout=WAIT))
        provoke(cl, "INVALID_ARGUMENT", lambda: list(e.Generate(pb.GenerateRequest(), timeout=WAIT)))
        provoke(cl, "NOT_FOUND", lambda: list(e.Generate(ask("x", model="other"), timeout=WAIT)))
        provoke(cl, "UNIMPLEMENTED", lambda: list(e.Generate(ask("x", adapter="a"), timeout=WAIT)))
        provoke(cl, "DEADLINE_EXCEEDED", lambda: list(e.Generate(ask("x", 2000, budget_ms=30), timeout=WAIT)))
        provoke(cl, "CANCELLED", lambda: cancelled(e))
        seen.add(without_a_certificate(cl))
    slow = ["--fault", "step.pause=delay:us=20000"]
    keys = keys_file(("a", "secret", 0), ("b", "limited", 1))
    with cluster(decode=2, decode_args=slow, router=["--api-key-file", keys, "--pair-wait", "0.5"]) as cl, channel(cl) as ch:
        e, limited = engine(ch), [("x-api-key", "limited")]
        provoke(cl, "UNAUTHENTICATED", lambda: e.ListModels(pb.ListModelsRequest(), timeout=WAIT))
        provoke(cl, "RESOURCE_EXHAUSTED", lambda: [e.Tokenize(pb.TokenizeRequest(text="x"), timeout=WAIT, metadata=limited)
                                                   for _ in range(5)])
        provoke(cl, "ABORTED", lambda: two_deaths(cl, e))
        provoke(cl, "UNAVAILABLE", lambda: no_node(cl, e))
    assert seen == documented(), seen ^ documented()


def test_errors_carry_their_code_and_when_to_come_again():
    with channel() as ch:
        try:
            list(engine(ch).Generate(ask("x", model="other"), timeout=WAIT))
        except grpc.RpcError as e:
            trailers = dict(e.trailing_metadata())
            assert trailers["tandem-code"] == "model_not_found" and trailers["grpc-retry-pushback-ms"] == "-1", trailers


def test_a_request_id_is_echoed_and_found_in_the_logs():
    with channel() as ch:
        call = engine(ch).Generate(ask("x"), timeout=WAIT, metadata=[("x-request-id", "grpc-echo-1")])
        assert dict(call.initial_metadata())["x-request-id"] == "grpc-echo-1"
        assert list(call)[0].id.startswith("gen-")
    log = shared().router.log()
    assert "req=grpc-echo-1" in log and '"rt_grpc"' in log.replace("msg=rt_grpc", '"rt_grpc"'), log[-2000:]


def test_keys_are_checked_and_limited_like_over_http():
    path = keys_file(("a", "secret-a", 0), ("b", "secret-b", 1))
    code = grpc.StatusCode
    with cluster(router=["--api-key-file", path]) as cl, channel(cl) as ch:
        e = engine(ch)

        def models(*metadata):
            return e.ListModels(pb.ListModelsRequest(), timeout=WAIT, metadata=metadata).models

        assert models(("authorization", "Bearer secret-a")) and models(("x-api-key", "secret-a"))
        for bad in ((), (("authorization", "Bearer wrong"),), (("x-api-key", "wrong"),), (("authorization", "secret-a"),)):
            assert status_of(lambda: models(*bad))[0] == code.UNAUTHENTICATED, bad
        nothing = ch.unary_unary("/no.Such/Method")
        assert status_of(lambda: nothing(b"", timeout=WAIT))[0] == code.UNAUTHENTICATED
        assert health(ch, "") == health_pb2.HealthCheckResponse.SERVING  # probes have no key
        a, b = [("x-api-key", "secret-a")], [("x-api-key", "secret-b")]
        statuses = []
        for _ in range(4):
            try:
                list(e.Generate(ask("x", 2), timeout=WAIT, metadata=b))
                statuses.append(code.OK)
            except grpc.RpcError as err:
                statuses.append(err.code())
                assert int(dict(err.trailing_metadata())["grpc-retry-pushback-ms"]) > 0
        assert code.RESOURCE_EXHAUSTED in statuses and code.OK in statuses, statuses
        running = e.Generate(ask("x", 1900, n=8, sampling={"ignore_eos": True}), timeout=WAIT, metadata=a)
        first = next(running)
        cancel = pb.CancelRequest(id=first.id)
        assert not e.Cancel(cancel, timeout=WAIT, metadata=b).known  # another tenant's
        assert e.Cancel(cancel, timeout=WAIT, metadata=a).known
        assert status_of(lambda: list(running))[0] == code.CANCELLED
        assert not e.Cancel(cancel, timeout=WAIT, metadata=a).known
        blocks_back(cl)


def test_a_call_cancelled_at_any_point_leaves_nothing_behind():
    with channel() as ch:
        e = engine(ch)
        for after in range(8):
            call = e.Generate(ask("the quick brown fox " * 20, 1000), timeout=WAIT)
            for _ in range(after):
                next(call)
            call.cancel()
        for _ in range(20):
            e.Generate(ask("x", 1000), timeout=WAIT).cancel()
        blocks_back()
        wait_for(lambda: not shared().admin("/requests")["live"], WAIT, "the requests to end")
        assert Whole(e.Generate(ask("x"), timeout=WAIT)).usage.completion_tokens == 8


def test_a_thousand_streams_at_once_are_answered_by_the_async_client():
    async def many():
        address = f"127.0.0.1:{shared().router.port('grpc')}"
        async with grpc.aio.insecure_channel(address) as ch:
            e = rpc.EngineStub(ch)

            async def one(i):
                try:
                    return len([m async for m in e.Generate(ask(f"number {i}", 2), timeout=120)])
                except grpc.RpcError as err:
                    return err.code()

            return await asyncio.gather(*(one(i) for i in range(1000)))

    results = asyncio.run(many())
    answered = [r for r in results if isinstance(r, int)]
    refused = [r for r in results if not isinstance(r, int)]
    assert all(n == 3 for n in answered) and len(answered) >= 500, (len(answered), set(refused))
    assert set(refused) <= {grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE}, set(refused)
    blocks_back()


def test_a_drain_finishes_what_runs_and_sends_new_calls_away():
    with cluster() as cl, channel(cl) as ch:
        e = engine(ch)
        running = e.Generate(ask("x", 300), timeout=WAIT)
        got = [next(running)]
        stopped = threading.Thread(target=cl.router.stop)
        stopped.start()
        got += list(running)
        assert got[-1].usage.completion_tokens == 300
        stopped.join()
        assert cl.router.proc.returncode == 0


def admin_channel(process):
    return grpc.insecure_channel(f"127.0.0.1:{process.port('admin')}")


def test_nodes_answer_health_and_reflection_on_their_admin_port():
    with cluster() as cl:
        for node, role, other in (("prefill-0", "prefill", "decode"), ("decode-0", "decode", "prefill")):
            with admin_channel(cl.nodes[node]) as ch:
                for service in ("", "readiness", "liveness", role):
                    assert health(ch, service) == health_pb2.HealthCheckResponse.SERVING, (node, service)
                assert health(ch, other) == health_pb2.HealthCheckResponse.NOT_SERVING
                assert "grpc.health.v1.Health" in ProtoReflectionDescriptorDatabase(ch).get_services()
                assert cl.blocks(cl.nodes[node])  # the same port still speaks HTTP
        cl.router.kill()  # nodes do not need a router to be ready
        with admin_channel(cl.nodes["decode-0"]) as ch:
            assert health(ch, "readiness") == health_pb2.HealthCheckResponse.SERVING


def test_tandemctl_asks_for_health_like_a_probe():
    ctl = os.path.join(os.path.abspath(BUILD), "ctl", "tandemctl")

    def ask_health(address, *args):
        out = subprocess.run([ctl, "health", address] + list(args), capture_output=True, text=True, timeout=WAIT)
        return out.returncode, out.stdout.strip()

    for process, what in ((shared().router, "grpc"), (shared().router, "admin"), (shared().nodes["decode-0"], "admin")):
        assert ask_health(f"127.0.0.1:{process.port(what)}") == (0, "SERVING"), what
    node = f"localhost:{shared().nodes['prefill-0'].port('admin')}"
    assert ask_health(node, "--service", "decode") == (1, "NOT_SERVING")
    assert ask_health(node, "--service", "no.Such") == (1, "")
    assert ask_health("127.0.0.1:1")[0] == 3 and ask_health("non sense")[0] == 2
    assert ask_health(f"127.0.0.1:{shared().router.port('http')}")[0] == 3  # no gRPC there


def test_operators_see_explain_and_drain_on_the_admin_port_only():
    with cluster(decode=2) as cl, admin_channel(cl.router) as ch, channel(cl) as public:
        admin = rpc.AdminStub(ch)
        assert status_of(lambda: rpc.AdminStub(public).ListNodes(pb.ListNodesRequest(), timeout=WAIT))[0] \
            == grpc.StatusCode.UNIMPLEMENTED
        nodes = {n.name: n for n in admin.ListNodes(pb.ListNodesRequest(), timeout=WAIT).nodes}
        assert set(nodes) == {"prefill-0", "decode-0", "decode-1"}
        assert nodes["prefill-0"].role == pb.NODE_ROLE_PREFILL and nodes["prefill-0"].state == pb.NODE_STATE_READY
        assert nodes["decode-0"].blocks.free > 0 and len(nodes["decode-0"].epoch) == 16 and nodes["decode-0"].version
        assert nodes["decode-0"].address.endswith(str(cl.nodes["decode-0"].port("admin"))), nodes["decode-0"].address
        list(engine(public).Generate(ask("x", 4), timeout=WAIT, metadata=[("x-request-id", "explain-me")]))
        told = admin.Explain(pb.ExplainRequest(id="explain-me"), timeout=WAIT)
        assert [s.name for s in told.stages][:3] == ["router_queue", "prefill_queue", "prefill"], told
        assert told.kv_bytes > 0 and told.attempts == 1 and not told.HasField("failure")
        chosen = [c for c in told.candidates if c.chosen]
        assert len(chosen) == 1 and not chosen[0].why_not and len(told.candidates) == 2
        assert all(c.why_not for c in told.candidates if not c.chosen)
        assert len(told.tries) == 1 and told.tries[0].pairs_seen == 2 and [p.chosen for p in told.tries[0].pairs] == [True, False]
        assert not told.tries[0].HasField("failed_us") and told.output_tokens == 4 and told.phase == "", told
        assert status_of(lambda: admin.Explain(pb.ExplainRequest(id="no"), timeout=WAIT))[0] == grpc.StatusCode.NOT_FOUND
        assert admin.Drain(pb.DrainRequest(node="decode-0", why="test"), timeout=WAIT).node.name == "decode-0"
        assert admin.Undrain(pb.UndrainRequest(node="decode-0"), timeout=WAIT).node.name == "decode-0"
        wait_for(lambda: {n.name: n.state for n in admin.ListNodes(pb.ListNodesRequest(), timeout=WAIT).nodes}["decode-0"]
                 == pb.NODE_STATE_READY, WAIT, "the undrained node")
        assert status_of(lambda: admin.Drain(pb.DrainRequest(node="no"), timeout=WAIT))[0] == grpc.StatusCode.NOT_FOUND
        assert status_of(lambda: admin.Drain(pb.DrainRequest(node="decode-0", limit_ms=10 ** 9), timeout=WAIT))[0] \
            == grpc.StatusCode.INVALID_ARGUMENT
        assert status_of(lambda: next(admin.WatchEvents(pb.WatchEventsRequest(kinds=["node.gone"]), timeout=WAIT)))[0] \
            == grpc.StatusCode.INVALID_ARGUMENT
        watch = admin.WatchEvents(pb.WatchEventsRequest(kinds=["node.drain", "node.lost"]))
        watch.initial_metadata()  # it is watching from here on
        admin.Drain(pb.DrainRequest(node="decode-0", why="test"), timeout=WAIT)
        event = next(watch)
        assert (event.kind, event.node, event.text) == ("node.drain", "decode-0", "test")

        def state(name):
            return {n.name: n.state for n in admin.ListNodes(pb.ListNodesRequest(), timeout=WAIT).nodes}.get(name)

        assert state("decode-0") == pb.NODE_STATE_DRAINING
        cl.nodes["decode-1"].kill()
        event = next(watch)
        assert (event.kind, event.node) == ("node.lost", "decode-1") and event.seq > 1
        wait_for(lambda: state("decode-1") is None, WAIT, "the lost node to be gone from the list")
        watch.cancel()
        assert cl.router.stop() == 0


def read(*path):
    with open(os.path.join(*path), "rb") as f:
        return f.read()


def https_chat(port, context):
    body = json.dumps({"messages": [{"role": "user", "content": "hello"}], "max_tokens": 4, "temperature": 0})
    c = http.client.HTTPSConnection("127.0.0.1", port, timeout=WAIT, context=context)
    c.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
    r = c.getresponse()
    answer = json.loads(r.read())
    c.close()
    assert r.status == 200, answer
    return answer


def shown_name(port, alpn):
    """The subject of the certificate a port shows now."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols([alpn])
    with socket.create_connection(("127.0.0.1", port), WAIT) as raw, context.wrap_socket(raw) as s:
        assert s.selected_alpn_protocol() == alpn
        return hashlib.sha256(s.getpeercert(True)).hexdigest()


def test_tls_serves_both_ports_and_takes_a_renewed_certificate():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    issue(folder, "ca")
    issue(folder, "one", "ca")
    issue(folder, "two", "ca")
    live = os.path.join(folder, "live")
    for end in (".pem", ".key"):
        shutil.copy(os.path.join(folder, "one" + end), live + end)
    with cluster(router=["--tls-cert", live + ".pem", "--tls-key", live + ".key"]) as cl:
        http_port, grpc_port = cl.router.port("http"), cl.router.port("grpc")
        context = ssl.create_default_context(cafile=os.path.join(folder, "ca.pem"))
        want = https_chat(http_port, context)["choices"][0]["message"]["content"]
        root = grpc.ssl_channel_credentials(read(folder, "ca.pem"))
        with grpc.secure_channel(f"127.0.0.1:{grpc_port}", root) as ch, channel(cl) as plain:
            assert Whole(engine(ch).Generate(ask(chat=user("hello"), tokens=4), timeout=WAIT)).text == want
            assert status_of(lambda: health(plain, ""))[0] == grpc.StatusCode.UNAVAILABLE
            running = engine(ch).Generate(ask("x", 400), timeout=WAIT)
            next(running)
            before = shown_name(grpc_port, "h2")
            assert before == shown_name(http_port, "http/1.1")
            for end in (".key", ".pem"):
                os.replace(shutil.copy(os.path.join(folder, "two" + end), live + ".new"), live + end)
            wait_for(lambda: shown_name(grpc_port, "h2") != before, WAIT, "the renewed certificate")
            assert shown_name(http_port, "http/1.1") == shown_name(grpc_port, "h2")
            assert Whole(running).usage.completion_tokens == 400  # a connection keeps what it began with
            https_chat(http_port, context)
            with open(live + ".pem", "w", encoding="utf-8") as f:
                f.write("not a certificate")
            os.kill(cl.router.proc.pid, signal.SIGHUP)
            wait_for(lambda: "cannot use the TLS files" in cl.router.log(), WAIT, "the router to complain")
            https_chat(http_port, context)
        assert cl.router.stop() == 0


def test_mutual_tls_lets_in_only_whom_the_ca_signed():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    issue(folder, "ca")
    issue(folder, "server", "ca")
    issue(folder, "friend", "ca")
    issue(folder, "stranger")
    at = os.path.join(folder, "")
    with cluster(router=["--tls-cert", at + "server.pem", "--tls-key", at + "server.key", "--tls-client-ca",
                         at + "ca.pem"]) as cl:
        address = f"127.0.0.1:{cl.router.port('grpc')}"

        def try_as(name):
            pair = (read(folder, name + ".key"), read(folder, name + ".pem")) if name else (None, None)
            with grpc.secure_channel(address, grpc.ssl_channel_credentials(read(folder, "ca.pem"), *pair)) as ch:
                return health(ch, "")

        assert try_as("friend") == health_pb2.HealthCheckResponse.SERVING
        for name in ("", "stranger"):
            assert status_of(lambda: try_as(name))[0] == grpc.StatusCode.UNAVAILABLE, name
        context = ssl.create_default_context(cafile=at + "ca.pem")
        try:
            https_chat(cl.router.port("http"), context)
            raise AssertionError("a client without a certificate was served")
        except OSError:
            pass
        context.load_cert_chain(at + "friend.pem", at + "friend.key")
        https_chat(cl.router.port("http"), context)
        # The server's certificate is still the old CA's, which the clients trust; whom they are let in by is renewed.
        trusted = read(folder, "ca.pem")
        issue(folder, "ca2")
        issue(folder, "heir", "ca2")
        os.replace(at + "ca2.pem", at + "ca.pem")

        def renewed(name):
            pair = (read(folder, name + ".key"), read(folder, name + ".pem"))
            with grpc.secure_channel(address, grpc.ssl_channel_credentials(trusted, *pair)) as ch:
                try:
                    return health(ch, "") == health_pb2.HealthCheckResponse.SERVING
                except grpc.RpcError:
                    return False

        wait_for(lambda: renewed("heir"), WAIT, "the renewed CA")
        assert not renewed("friend")


def test_tls_files_that_do_not_fit_are_refused_with_a_reason():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    issue(folder, "one")
    issue(folder, "two")
    key = os.path.join(folder, "cluster.key")
    router = os.path.abspath(cluster().binary("tandem-router"))
    with open(key, "w", encoding="utf-8") as f:
        f.write("k1 0123456789abcdef0123456789abcdef\n")
    for args, reason in ((["--tls-cert", "one.pem", "--tls-key", "two.key"], "the key is not the certificate's"),
                         (["--tls-cert", "one.pem"], "TLS needs both files"),
                         (["--tls-cert", "none.pem", "--tls-key", "one.key"], "cannot read a TLS file"),
                         (["--tls-cert", "one.key", "--tls-key", "one.key"], "not a PEM certificate")):
        out = subprocess.run([router, "--model", tiny_model(), "--cluster-key-file", key, "--node", "tcp://127.0.0.1:1",
                              "--port", "0", "--admin-port", "0", "--grpc-port", "0"] + args,
                             cwd=folder, capture_output=True, text=True, timeout=WAIT)
        assert out.returncode == (1 if "read" in reason else 2) and reason in out.stdout + out.stderr, (args, out)


def test_the_example_of_the_docs_runs():
    out = subprocess.run([sys.executable, os.path.join(ROOT, "docs", "examples", "grpc_client.py"),
                          f"127.0.0.1:{shared().router.port('grpc')}", "hello"],
                         env=dict(os.environ, PYTHONPATH=STUBS), capture_output=True, text=True, timeout=WAIT, check=True)
    assert "generated]" in out.stdout, out


def test_dev_up_prints_addresses_that_answer():
    """What ./dev up runs, and its curl line by a shell."""
    proc = subprocess.Popen([sys.executable, os.path.join(ROOT, "deploy", "local", "demo.py"), "--up", "--build", BUILD, "--model",
                             tiny_model(), "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        said = ""
        while "Ctrl-C" not in said:
            line = proc.stdout.readline()
            assert line, said
            said += line
        with grpc.insecure_channel(re.search(r"gRPC: (\S+)", said)[1]) as ch:
            assert Whole(engine(ch).Generate(ask("x", 3), timeout=WAIT)).usage.completion_tokens == 3
        told = subprocess.run(["sh", "-c", said[said.index("curl "):said.index("\n\nCtrl-C")]], capture_output=True, text=True,
                              timeout=WAIT, check=True).stdout
        assert told.startswith("data: {") and told.rstrip().endswith("data: [DONE]"), told
        proc.send_signal(signal.SIGINT)
        assert proc.wait(WAIT) == 0
    finally:
        if proc.poll() is None:
            proc.terminate()
            proc.wait(WAIT)
        proc.stdout.close()


def test_no_request_brought_a_warning():
    assert SHARED is None or not [line for line in SHARED.router.log().splitlines() if "level=error" in line]


def test_an_unknown_method_is_unimplemented():
    with channel() as ch:
        call = ch.unary_unary("/tandem.v1.Engine/Nothing")
        assert status_of(lambda: call(b"", timeout=WAIT))[0] == grpc.StatusCode.UNIMPLEMENTED


def test_a_watch_tells_when_a_role_is_lost_and_a_drain_does_not_wait_for_it():
    with cluster() as cl, channel(cl) as ch:
        seen = iter(health_pb2_grpc.HealthStub(ch).Watch(health_pb2.HealthCheckRequest(service="decode")))
        assert next(seen).status == health_pb2.HealthCheckResponse.SERVING
        cl.nodes["decode-0"].kill()
        assert next(seen).status == health_pb2.HealthCheckResponse.NOT_SERVING
        wait_for(lambda: health(ch, "") == health_pb2.HealthCheckResponse.NOT_SERVING, WAIT, "the router to notice")
        assert cl.router.stop() == 0


def test_a_watch_tells_a_planned_end_from_a_loss():
    with cluster(decode=2) as cl, admin_channel(cl.router) as ch:
        admin = rpc.AdminStub(ch)
        watch = admin.WatchEvents(pb.WatchEventsRequest(kinds=["node.lost", "node.left"]), timeout=WAIT)
        watch.initial_metadata()
        assert cl.nodes["decode-1"].stop() == 0  # SIGTERM: it drains, then leaves
        event = next(watch)
        assert (event.kind, event.node) == ("node.left", "decode-1"), event
        cl.nodes["decode-0"].kill()
        event = next(watch)
        assert (event.kind, event.node) == ("node.lost", "decode-0"), event


def test_the_shared_cluster_stops_cleanly():
    if SHARED is not None:
        assert set(SHARED.stop().values()) == {0}


run(globals())
