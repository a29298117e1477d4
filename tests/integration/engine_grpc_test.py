"""VllmEngine on nodes of every role with stock clients (grpcio): the same tokens as over the router, hand-offs between a prefill
and a decode node by an outside router, keys, mutual TLS, cancellation, and no block lost.

Needs the pinned packages of tests/requirements.txt (TANDEM_TEST_PYTHON); stubs are made from proto/vllm_engine.proto, unchanged.
"""
import os
import subprocess
import sys

PINNED = os.environ.get("TANDEM_TEST_PYTHON", sys.executable)
if os.path.abspath(sys.executable) != os.path.abspath(PINNED):
    os.execv(PINNED, [PINNED] + sys.argv)  # the interpreter that has the packages

import hashlib  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402

import engine_client  # noqa: E402
from engine_client import (SERVICE, WAIT, channel, code_of, common, engine, grpc, pb, request_of, rpc,  # noqa: E402
                           tokenizer, whole)
from harness import (SCRATCH, Both, all_blocks_back, certificate, cluster, in_threads, request, run,  # noqa: E402
                     tiny_model, tokens_of, unexpected_lines, wait_for)
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase  # noqa: E402

PROMPT = "the quick brown fox jumps over the lazy dog " * 3
SHARED = {}


def both():
    """A node that serves whole requests, alone; its HTTP port is the reference."""
    if "both" not in SHARED:
        SHARED["both"] = Both(args=SERVICE).__enter__()
    return SHARED["both"]


def pair():
    """A prefill and a decode node, and a router of ours beside the outside one that the tests play."""
    if "pair" not in SHARED:
        SHARED["pair"] = cluster(time_scale=1, node=list(SERVICE) + ["--handoff-hold", "2"]).__enter__()
    return SHARED["pair"]


def prefill():
    return pair().nodes["prefill-0"]


def decode():
    return pair().nodes["decode-0"]


def ids_of(text):
    if "tokenizer" not in SHARED:
        SHARED["tokenizer"] = tokenizer(both().proc)
    return SHARED["tokenizer"].encode(text).ids


def ask(prompt=PROMPT, kv=None, request_id="", stream=False, **sampling):
    return request_of(ids_of(prompt), kv, request_id, stream, **sampling)


def status_of(call):
    """The code and text of a call that must fail."""
    try:
        call()
    except grpc.RpcError as e:
        return e.code(), e.details()
    raise AssertionError("the call did not fail")


def hold(prompt=PROMPT, request_id="", **sampling):
    return engine_client.hold(prefill(), ids_of(prompt), request_id, **sampling)


def blocks_back(*processes):
    for p in processes or (prefill(), decode()):
        all_blocks_back(pair(), p)


def test_a_node_tells_what_it_is():
    for process, role, connector in ((both().proc, "", ""), (prefill(), "kv_producer", "NixlConnector"),
                                     (decode(), "kv_consumer", "NixlConnector")):
        e = engine(process)
        assert e.HealthCheck(pb.HealthCheckRequest(), timeout=WAIT).healthy
        model = e.GetModelInfo(pb.GetModelInfoRequest(), timeout=WAIT)
        assert (model.served_model_name, model.is_generation, model.max_context_length) == ("tiny", True, 2048), model
        assert model.vocab_size == 460 and list(model.eos_token_ids) and not model.tokenizer_path
        assert json.loads(model.default_sampling_params_json) == {}
        server = e.GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT)
        assert (server.kv_connector, server.kv_role) == (connector, role), server
        assert server.data_parallel_size == 1 and server.block_size == 16 and server.uptime_seconds > 0
        assert server.max_num_seqs == 64 and not server.is_paused
        load, = e.GetLoads(pb.GetLoadsRequest(), timeout=WAIT).loads
        assert load.max_total_num_tokens > 0 and load.num_running_reqs == 0 and load.token_usage == 0
        assert status_of(lambda: e.GetLoads(pb.GetLoadsRequest(dp_rank=1), timeout=WAIT))[0] == grpc.StatusCode.INVALID_ARGUMENT
    infos = [engine(p).GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT) for p in (prefill(), decode())]
    assert infos[0].pairing_protocol == infos[1].pairing_protocol and infos[0].kv_engine_id != infos[1].kv_engine_id


def test_health_and_reflection_list_the_service():
    for process in (both().proc, prefill()):
        with channel(process) as ch:
            for name in ("", "vllm.grpc.engine.VllmEngine"):
                assert health_pb2_grpc.HealthStub(ch).Check(health_pb2.HealthCheckRequest(service=name), timeout=WAIT).status \
                    == health_pb2.HealthCheckResponse.SERVING
            db = ProtoReflectionDescriptorDatabase(ch)
            assert "vllm.grpc.engine.VllmEngine" in db.get_services()
            assert db.FindFileContainingSymbol("vllm.grpc.engine.GenerateRequest").dependency == ["smg_common.proto"]
            assert status_of(lambda: rpc.VllmEngineStub(ch).Embed(pb.EmbedRequest(), timeout=WAIT))[0] \
                == grpc.StatusCode.UNIMPLEMENTED


def test_the_tokenizer_comes_as_hugging_faces_files():
    tok = tokenizer(prefill())
    assert tok.decode(tok.encode(PROMPT).ids) == PROMPT


def test_a_large_tokenizer_comes_in_pieces_to_those_who_wait_for_them():
    if not os.environ.get("TANDEM_TEST_MODEL"):
        return
    with Both(model=os.environ["TANDEM_TEST_MODEL"], args=SERVICE) as b:
        half = engine(b.proc).GetTokenizer(common.GetTokenizerRequest(), timeout=WAIT)
        assert len(next(half).data) == 256 << 10
        half.cancel()  # leaves in the middle
        tok = in_threads([lambda: tokenizer(b.proc)] * 4)[0]
        assert tok.get_vocab_size() == 49152 and tok.decode(tok.encode(PROMPT).ids) == PROMPT
        assert not unexpected_lines(b.proc)


def test_the_same_request_gives_the_same_tokens_as_over_http():
    want = tokens_of(both().port, PROMPT)
    got = whole(both().proc, ask())
    assert list(got.output_ids) == want and got.finish_reason == "length", (got, want)
    assert (got.prompt_tokens, got.completion_tokens) == (len(ids_of(PROMPT)), 24)
    text = pb.GenerateRequest(text=PROMPT, sampling_params=pb.SamplingParams(temperature=0, max_tokens=24))
    assert list(whole(both().proc, text).output_ids) == want
    messages = list(engine(both().proc).Generate(ask(stream=True), timeout=WAIT))
    assert [t for m in messages[:-1] for t in m.chunk.token_ids] == want and list(messages[-1].complete.output_ids) == want
    assert [m.chunk.completion_tokens for m in messages[:-1]] == list(range(1, 25))


def test_sampling_parameters_mean_what_they_mean_over_http():
    fields = {"temperature": 0.8, "seed": 7, "top_p": 0.9, "top_k": 40, "min_p": 0.01, "frequency_penalty": 0.5,
              "presence_penalty": 0.25, "repetition_penalty": 1.1, "min_tokens": 3}
    for more in ({}, {"logit_bias": {17: 50.0}}):
        body = dict(fields, logit_bias={str(k): v for k, v in more.get("logit_bias", {}).items()})
        assert list(whole(both().proc, ask(**fields, **more)).output_ids) == tokens_of(both().port, PROMPT, **body)
    two = list(engine(both().proc).Generate(ask(temperature=0.8, seed=7, n=2, stream=True), timeout=WAIT))
    a = request(both().port, "POST", "/v1/completions", {"prompt": PROMPT, "temperature": 0.8, "seed": 7, "n": 2,
                                                         "max_tokens": 24, "return_token_ids": True}).json()
    for i in range(2):
        assert [t for m in two if m.HasField("chunk") and m.chunk.index == i for t in m.chunk.token_ids] \
            == a["choices"][i]["token_ids"]


def test_stop_ids_and_stop_strings_end_an_answer():
    want = tokens_of(both().port, PROMPT)
    at = next(i for i in range(3, 24) if want[i] not in want[:i])
    got = whole(both().proc, ask(stop_token_ids=[want[at]]))
    assert list(got.output_ids) == want[:at + 1] and (got.finish_reason, got.matched_token_id) == ("stop", want[at]), got
    full = request(both().port, "POST", "/v1/completions",
                   {"prompt": PROMPT, "temperature": 0, "max_tokens": 24}).json()["choices"][0]["text"]
    stop = next(full[i:i + 2] for i in range(4, len(full) - 2) if full[i:i + 2].isascii() and full[i:i + 2].isalnum())
    got = whole(both().proc, ask(stop=["never said", stop]))
    assert (got.finish_reason, got.matched_stop_str) == ("stop", stop), got
    assert list(got.output_ids) == want[:len(got.output_ids)] and 0 < len(got.output_ids) < 24
    got = whole(both().proc, ask(stop=[stop], min_tokens=24))
    assert (list(got.output_ids), got.finish_reason) == (want, "length"), got
    wait_for(lambda: engine(both().proc).GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT).active_requests == 0, WAIT,
             "the stopped request to end in the engine")


def test_what_cannot_be_served_is_refused_by_name():
    refusals = [({"logprobs": 1}, "logprobs"), ({"prompt_logprobs": 0}, "prompt_logprobs"), ({"json_object": True}, "json_object"),
                ({"regex": "a*"}, "regex"), ({"temperature": -1}, "temperature"), ({"top_p": 2}, "top_p"),
                ({"max_tokens": 0}, "max_tokens"), ({"max_tokens": 10 ** 6}, "max_tokens"), ({"n": 17}, "n must"),
                ({"stop_token_ids": [460]}, "460"), ({"logit_bias": {5: 1000.0}}, "logit_bias"), ({"stop": [""]}, "stop"),
                ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens")]
    for sampling, field in refusals:
        code, text = status_of(lambda: whole(both().proc, ask(**sampling)))  # noqa: B023
        assert code == grpc.StatusCode.INVALID_ARGUMENT and field in text, (sampling, code, text)
    bad = [pb.GenerateRequest(), pb.GenerateRequest(text="x" * 20000), pb.GenerateRequest(text="x", media_refs=pb.MediaRefs()),
           pb.GenerateRequest(text="x", data_parallel_rank=1), pb.GenerateRequest(tokenized=pb.TokenizedInput(input_ids=[460])),
           pb.GenerateRequest(text="x", request_id="x" * 300), pb.GenerateRequest(tokenized=pb.TokenizedInput())]
    for r in bad + [ask(kv={"do_remote_decode": True}), ask(kv="{"), ask(kv={"do_remote_prefill": True})]:
        assert status_of(lambda: whole(both().proc, r))[0] == grpc.StatusCode.INVALID_ARGUMENT, r  # noqa: B023
    for process in (prefill(), decode()):
        code, text = status_of(lambda: whole(process, ask()))  # noqa: B023
        assert code == grpc.StatusCode.INVALID_ARGUMENT and "kv_transfer_params_json" in text, (code, text)
    assert list(whole(both().proc, ask(kv={"do_remote_decode": False})).output_ids) == tokens_of(both().port, PROMPT)


def running(process):
    return engine(process).GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT).active_requests


def idle(process):
    def over():
        load, = engine(process).GetLoads(pb.GetLoadsRequest(), timeout=WAIT).loads
        return running(process) == 0 and load.num_used_tokens == 0 and load.num_total_reqs == 0

    wait_for(over, WAIT, "the node to end it and to free its blocks")


def test_a_client_that_leaves_or_runs_out_of_time_ends_its_request():
    e = engine(both().proc)
    stream = e.Generate(ask(max_tokens=1800, ignore_eos=True, stream=True), timeout=WAIT)
    next(stream)
    assert running(both().proc) == 1
    stream.cancel()
    idle(both().proc)
    code, _ = status_of(lambda: list(e.Generate(ask(max_tokens=1800, ignore_eos=True, stream=True), timeout=0.15)))
    assert code == grpc.StatusCode.DEADLINE_EXCEEDED
    idle(both().proc)


def test_abort_ends_a_request_by_its_id():
    e = engine(both().proc)
    stream = e.Generate(ask(request_id="mine", max_tokens=1800, ignore_eos=True, stream=True), timeout=WAIT)
    next(stream)
    e.Abort(pb.AbortRequest(request_ids=["unknown", "mine"]), timeout=WAIT)
    last = list(stream)[-1].complete
    assert last.finish_reason == "abort" and 0 < len(last.output_ids) < 1800
    idle(both().proc)


def test_many_at_once_get_each_their_own_answer():
    prompts = [f"story number {i} of many" for i in range(24)]
    e = engine(both().proc)

    def one(prompt):
        return lambda: list(list(e.Generate(ask(prompt, max_tokens=8), timeout=WAIT))[0].complete.output_ids)

    got = in_threads([one(p) for p in prompts])
    assert got == [tokens_of(both().port, p, max_tokens=8) for p in prompts]


def test_a_prompt_that_the_pool_never_holds_is_refused_for_good():
    with Both(args=list(SERVICE) + ["--kv-blocks", "4"]) as b:
        status, code = code_of(lambda: whole(b.proc, ask()))
        assert (status, code) == (grpc.StatusCode.INVALID_ARGUMENT, "context_length_exceeded"), (status, code)
        a = request(b.port, "POST", "/v1/completions", {"prompt": PROMPT})
        assert (a.status, a.error()["code"]) == (400, "context_length_exceeded"), a.body
        assert len(whole(b.proc, ask("a", max_tokens=4)).output_ids) == 4


def test_kv_events_stay_silent_until_the_client_leaves():
    stream = engine(both().proc).SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=WAIT)
    stream.initial_metadata()  # it is open
    assert stream.is_active()
    stream.cancel()


def test_a_hand_off_gives_the_tokens_of_one_node():
    for prompt in ("hi", PROMPT, "a long story about " * 40):
        want = tokens_of(both().port, prompt)
        held = hold(prompt)
        assert list(held.output_ids) == want[:1] and held.finish_reason == "length", held
        params = json.loads(held.kv_transfer_params_json)
        assert params["do_remote_prefill"] and params["remote_engine_id"], params
        assert status_of(lambda: whole(both().proc, ask(prompt, held.kv_transfer_params_json)))[0] \
            == grpc.StatusCode.INVALID_ARGUMENT
        got = whole(decode(), ask(prompt, held.kv_transfer_params_json))
        assert list(got.output_ids) == want, (prompt, list(got.output_ids), want)
    blocks_back()


def test_a_hand_off_streams_and_takes_seed_and_stop_with_it():
    fields = {"temperature": 0.8, "seed": 11, "top_k": 40}
    want = tokens_of(both().port, PROMPT, **fields)
    held = hold(**fields)
    messages = list(engine(decode()).Generate(ask(kv=held.kv_transfer_params_json, stream=True, **fields), timeout=WAIT))
    assert [t for m in messages[:-1] for t in m.chunk.token_ids] == want
    want = tokens_of(both().port, PROMPT)
    at = next(i for i in range(3, 24) if want[i] not in want[:i])
    got = whole(decode(), ask(kv=hold().kv_transfer_params_json, stop_token_ids=[want[at]]))
    assert list(got.output_ids) == want[:at + 1] and got.finish_reason == "stop"
    least = hold(min_tokens=24)  # of the whole request; the router has set max_tokens to 1
    assert list(whole(decode(), ask(kv=least.kv_transfer_params_json, min_tokens=24)).output_ids) == want
    one = whole(decode(), ask(kv=hold().kv_transfer_params_json, max_tokens=1))
    assert list(one.output_ids) == want[:1] and one.finish_reason == "length"
    first = whole(decode(), ask(kv=hold().kv_transfer_params_json, stop_token_ids=[want[0]]))
    assert list(first.output_ids) == want[:1] and first.finish_reason == "stop", first
    least = {"stop_token_ids": [want[0]], "min_tokens": 4}  # both steps must be told, or the first token may be a forbidden one
    code, text = status_of(lambda: whole(decode(), ask(kv=hold().kv_transfer_params_json, **least)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "min_tokens" in text, (code, text)
    want = tokens_of(both().port, PROMPT, **least)
    held = hold(**dict(least, max_tokens=4))
    assert list(whole(decode(), ask(kv=held.kv_transfer_params_json, **least)).output_ids) == want
    blocks_back()


def test_a_hand_off_is_taken_once():
    held = hold()
    assert len(whole(decode(), ask(kv=held.kv_transfer_params_json)).output_ids) == 24
    assert code_of(lambda: whole(decode(), ask(kv=held.kv_transfer_params_json))) == (grpc.StatusCode.UNAVAILABLE, "stale")
    blocks_back()


def test_a_prompt_is_held_for_its_time_only():
    held = hold()
    assert sum(v for k, v in pair().blocks(prefill()).items() if k not in ("free", "cached")) > 0
    blocks_back(prefill())  # nobody came
    assert code_of(lambda: whole(decode(), ask(kv=held.kv_transfer_params_json))) == (grpc.StatusCode.UNAVAILABLE,
                                                                                      "lease_expired")
    blocks_back()


def test_a_hand_off_that_is_not_ours_or_of_another_prompt_is_refused():
    held = hold()
    params = json.loads(held.kv_transfer_params_json)
    text = params["handoff"]
    flipped = text[:40] + ("0" if text[40] != "0" else "1") + text[41:]
    assert code_of(lambda: whole(decode(), ask(kv={"do_remote_prefill": True, "handoff": flipped}))) \
        == (grpc.StatusCode.PERMISSION_DENIED, "forbidden")
    for bad in ({"do_remote_prefill": True, "handoff": ""}, {"do_remote_prefill": True, "handoff": "nonsense!"},
                {"do_remote_prefill": True}):
        code, why = status_of(lambda: whole(decode(), ask(kv=bad)))  # noqa: B023
        assert code == grpc.StatusCode.INVALID_ARGUMENT, (bad, code, why)
    code, why = status_of(lambda: whole(decode(), ask("another prompt", held.kv_transfer_params_json)))
    assert code == grpc.StatusCode.INVALID_ARGUMENT and "another prompt" in why, (code, why)
    assert len(whole(decode(), ask(kv=held.kv_transfer_params_json)).output_ids) == 24  # still there
    blocks_back()


def test_abort_gives_back_what_is_held_and_a_client_that_leaves_what_it_takes():
    held = hold(request_id="held")
    engine(prefill()).Abort(pb.AbortRequest(request_ids=["held"]), timeout=WAIT)
    blocks_back(prefill())
    assert status_of(lambda: whole(decode(), ask(kv=held.kv_transfer_params_json)))[0] != grpc.StatusCode.OK
    held = hold()
    stream = engine(decode()).Generate(ask(kv=held.kv_transfer_params_json, max_tokens=1800, ignore_eos=True, stream=True),
                                       timeout=WAIT)
    next(stream)
    stream.cancel()
    blocks_back()


def test_a_client_writes_no_lines_of_its_own_into_the_log():
    stream = engine(both().proc).Generate(ask(request_id="mine\nforged line", max_tokens=1800, ignore_eos=True, stream=True),
                                          timeout=WAIT)
    next(stream)
    stream.cancel()
    wait_for(lambda: "outside router gone" in both().proc.log(), WAIT, "the node to tell of it")
    for bad in ("mine\nforged line", "{\"a\": \"\nforged line"):
        status_of(lambda: whole(both().proc, ask(request_id=bad, kv=bad)))  # noqa: B023
    idle(both().proc)
    assert "\nforged" not in both().proc.log()


def test_hand_offs_run_beside_our_own_router():
    http = pair().router.port("http")
    want = tokens_of(both().port, PROMPT)

    def outside():
        return list(whole(decode(), ask(kv=hold().kv_transfer_params_json)).output_ids)

    got = in_threads([outside if i % 2 else lambda: tokens_of(http, PROMPT) for i in range(8)])
    assert got == [want] * 8
    blocks_back()


def key_file(folder, secret):
    path = os.path.join(folder, "keys")
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"outside {hashlib.sha256(secret.encode()).hexdigest()} outside 0 0 1 0\n")
    return path


def test_a_key_is_asked_for_and_limits_count():
    folder = tempfile.mkdtemp(dir=SCRATCH)
    with Both(args=SERVICE + ("--engine-grpc-key-file", key_file(folder, "sesame"))) as b:
        e = engine(b.proc)
        info = pb.GetServerInfoRequest()
        for metadata in ((), (("authorization", "Bearer wrong"),), (("authorization", "sesame"),)):
            assert status_of(lambda: e.GetServerInfo(info, timeout=WAIT, metadata=metadata))[0] \
                == grpc.StatusCode.UNAUTHENTICATED  # noqa: B023
            assert status_of(lambda: list(e.Generate(ask(), timeout=WAIT, metadata=metadata)))[0] \
                == grpc.StatusCode.UNAUTHENTICATED  # noqa: B023
        right = (("authorization", "Bearer sesame"),)
        assert e.HealthCheck(pb.HealthCheckRequest(), timeout=WAIT).healthy  # a probe needs no key
        assert e.GetServerInfo(info, timeout=WAIT, metadata=right).max_num_seqs == 64
        stream = e.Generate(ask(max_tokens=1500, ignore_eos=True, stream=True), timeout=WAIT, metadata=right)
        next(stream)
        assert status_of(lambda: list(e.Generate(ask(), timeout=WAIT, metadata=right)))[0] \
            == grpc.StatusCode.RESOURCE_EXHAUSTED  # one at once
        stream.cancel()
        wait_for(lambda: len(list(e.Generate(ask(max_tokens=2), timeout=WAIT, metadata=right))) == 1 if free(e, right) else False,
                 WAIT, "the place to be free again")


def free(e, metadata):
    return e.GetServerInfo(pb.GetServerInfoRequest(), timeout=WAIT, metadata=metadata).active_requests == 0


def test_mutual_tls_lets_in_only_whom_the_ca_signed():
    cert, key = certificate()
    args = SERVICE + ("--engine-grpc-tls-cert", cert, "--engine-grpc-tls-key", key, "--engine-grpc-tls-client-ca", cert)
    with Both(args=args) as b:
        def ask_health(*pair_of_files):
            def read(path):
                with open(path, "rb") as f:
                    return f.read()
            given = [read(p) for p in pair_of_files] or [None, None]
            creds = grpc.ssl_channel_credentials(read(cert), *given)
            target = (("grpc.ssl_target_name_override", "localhost"),)
            with grpc.secure_channel(f"127.0.0.1:{b.proc.port('engine-grpc')}", creds, target) as ch:
                return rpc.VllmEngineStub(ch).HealthCheck(pb.HealthCheckRequest(), timeout=WAIT).healthy

        assert ask_health(key, cert)
        other_cert, other_key = certificate()
        for files in ((), (other_key, other_cert)):
            assert status_of(lambda: ask_health(*files))[0] == grpc.StatusCode.UNAVAILABLE  # noqa: B023


def test_nobody_opens_it_to_the_world_by_mistake():
    for args, status, reason in ((["--engine-grpc-host", "0.0.0.0"], 2, "open to everybody"),
                                 (["--engine-grpc-tls-cert", "no.pem"], 2, "TLS needs both files"),
                                 (["--engine-grpc-key-file", "/no/such/file"], 1, "cannot open the API key file")):
        out = subprocess.run([both().proc.argv[0], "--role", "both", "--model", tiny_model(), "--port", "0", "--admin-port", "0",
                              "--grpc-port", "0", "--router-admin-port", "0", *SERVICE, *args],
                             capture_output=True, text=True, timeout=WAIT)
        assert out.returncode == status and reason in out.stdout + out.stderr, out


def test_a_drain_finishes_what_runs_and_takes_nothing_new():
    with Both(args=SERVICE) as b:
        e = engine(b.proc)
        e.HealthCheck(pb.HealthCheckRequest(), timeout=WAIT)
        silent = e.SubscribeKvEvents(common.SubscribeKvEventsRequest(), timeout=WAIT)
        stream = e.Generate(ask(max_tokens=400, ignore_eos=True, stream=True), timeout=WAIT)
        silent.initial_metadata()
        got = [next(stream)]
        assert b.proc.stop() == 0
        got += list(stream)
        assert len(got[-1].complete.output_ids) == 400, got[-1]


def test_the_service_is_off_by_default():
    with Both() as b:
        assert "engine-grpc" not in b.proc.ports()


def test_nothing_unexpected_was_logged_and_all_stop_cleanly():
    for process in (both().proc, prefill(), decode()):
        assert not unexpected_lines(process), unexpected_lines(process)
    assert set(pair().stop().values()) == {0}
    assert both().proc.stop() == 0


run(globals())
