"""The Python openai package, as its users call it, against a live cluster.

The suite itself runs on the standard library; the client runs in a process of its own under $TANDEM_TEST_PYTHON, the
Python that has tests/requirements.txt: tests/clients/openai_client.py, one case a call.
"""
import hashlib
import json
import os
import subprocess
import sys

from harness import ROOT, SCRATCH, all_blocks_back, cluster, run, tiny_model, unexpected_lines, wait_for

PYTHON = os.environ.get("TANDEM_TEST_PYTHON", sys.executable)
CLIENT = os.path.join(ROOT, "tests", "clients", "openai_client.py")
KEYS = os.path.join(SCRATCH, "client-keys")


def have_client():
    return subprocess.run([PYTHON, "-c", "import openai"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


if not have_client():
    print("1..0 # SKIP no openai package in $TANDEM_TEST_PYTHON: run ./dev test")
    sys.exit(0)

with open(KEYS, "w", encoding="utf-8") as f:
    for name, limits in (("good", "0 0 0"), ("slow", "1 0 0")):
        f.write(f"{name} {hashlib.sha256(name.encode()).hexdigest()} tenant-{name} 0 {limits}\n")


def call(cl, *cases, **environment):
    """Runs cases of the client; its results as {case: value}. A case that fails prints its traceback and ends it."""
    done = subprocess.run([PYTHON, CLIENT, cl.url("/v1"), *cases], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, **environment))
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def clean(cl):
    wait_for(lambda: not cl.admin("/requests")["live"], 20, "the requests to end")
    for node in cl.nodes.values():
        all_blocks_back(cl, node)
    bad = [line for p in (cl.router, *cl.nodes.values()) for line in unexpected_lines(p)]
    assert not bad, bad


def test_chat_and_completions_plain_and_streaming_agree():
    with cluster(time_scale=1) as cl:
        r = call(cl, "chat", "chat_stream", "completion", "completion_stream", "completion_list")
        assert r["chat"]["text"] == r["chat_stream"]["text"] and r["chat"]["text"]
        assert r["chat"]["finish"] == r["chat_stream"]["finish"] == "length"
        assert r["completion"]["text"] == r["completion_stream"]["text"] and r["completion"]["text"]
        assert r["completion_list"]["texts"][0] == r["completion"]["text"] and len(r["completion_list"]["texts"]) == 2
        for case in ("chat", "completion"):
            usage = r[case]["usage"]
            assert usage["completion_tokens"] == 12 and usage["total_tokens"] == usage["prompt_tokens"] + 12
            assert r[case + "_stream"]["usage"] == usage
        assert r["chat_stream"]["chunks"] >= 3 and r["chat_stream"]["roles"] == ["assistant"]
        clean(cl)


def test_stop_seed_and_sampling_parameters_work():
    with cluster(time_scale=1) as cl:
        r = call(cl, "stop", "seed", "choices")
        assert r["stop"]["finish"] == "stop" and r["stop"]["string"] not in r["stop"]["text"]
        assert r["stop"]["full"].startswith(r["stop"]["text"] + r["stop"]["string"])
        assert r["seed"]["same"] and r["seed"]["different"]
        assert r["choices"]["indices"] == [0, 1]
        clean(cl)


def test_request_ids_and_models_are_what_the_client_expects():
    with cluster(time_scale=1) as cl:
        r = call(cl, "request_id", "models", "async_chat")
        assert r["request_id"] == {"sent": "from-the-client", "header": "from-the-client", "attribute": "from-the-client"}
        assert r["models"]["listed"] == ["tiny"] and r["models"]["retrieved"] == "tiny"
        assert len(set(r["async_chat"]["texts"])) == 1 and len(r["async_chat"]["texts"]) == 8
        clean(cl)


def test_errors_arrive_as_the_clients_own_classes():
    with cluster(time_scale=1) as cl:
        r = call(cl, "errors")["errors"]
        assert r["unknown_model"] == ["NotFoundError", 404, "model_not_found"]
        assert r["wrong_type"] == ["BadRequestError", 400, "bad_request"]
        assert r["unsupported"] == ["BadRequestError", 400, "unsupported"]
        assert r["too_long"] == ["BadRequestError", 400, "context_length_exceeded"]
        clean(cl)


def test_keys_and_rate_limits_arrive_as_the_clients_own_classes():
    with cluster(time_scale=1, router=["--api-key-file", KEYS]) as cl:
        r = call(cl, "wrong_key", OPENAI_API_KEY="guess")
        assert r["wrong_key"] == ["AuthenticationError", 401, "invalid_api_key"]
        assert call(cl, "chat", OPENAI_API_KEY="good")["chat"]["text"]
        r = call(cl, "rate_limit", OPENAI_API_KEY="slow")
        assert r["rate_limit"] == ["RateLimitError", 429, "rate_limited"]
        # With its retries on, the client waits as Retry-After says and gets its answer.
        assert call(cl, "retries", OPENAI_API_KEY="slow")["retries"]["answers"] == 2


def test_a_cluster_without_a_prefill_node_is_an_internal_server_error_to_the_client():
    with cluster(time_scale=1, prefill=0) as cl:
        assert call(cl, "no_node")["no_node"] == ["InternalServerError", 503, "no_ready_node"]


def test_leaving_a_stream_frees_everything():
    with cluster(time_scale=1, node=["--fault", "step.pause=delay:us=10000"]) as cl:
        assert call(cl, "leave")["leave"]["seen"] >= 2
        clean(cl)


if __name__ == "__main__":
    run(globals())
