"""What an outside router says to a node's VllmEngine: stubs made from proto/vllm_engine.proto, unchanged, and its requests.

Import it with the interpreter that has the pinned packages (TANDEM_TEST_PYTHON).
"""
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile

from harness import ROOT, SCRATCH

STUBS = os.path.join(SCRATCH, "stubs")
os.makedirs(STUBS)
subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I" + os.path.join(ROOT, "proto"), "--python_out=" + STUBS,
                "--grpc_python_out=" + STUBS, "smg_common.proto", "vllm_engine.proto"], check=True)
sys.path.insert(0, STUBS)

os.environ["GRPC_VERBOSITY"] = "NONE"  # refused handshakes are part of the tests
import grpc  # noqa: E402
import smg_common_pb2 as common  # noqa: E402
import vllm_engine_pb2 as pb  # noqa: E402
import vllm_engine_pb2_grpc as rpc  # noqa: E402
from tokenizers import Tokenizer  # noqa: E402

WAIT = 30
SERVICE = "--engine-grpc", "--engine-grpc-port", "0"


def channel(process):
    return grpc.insecure_channel(f"127.0.0.1:{process.port('engine-grpc')}")


def engine(process):
    return rpc.VllmEngineStub(channel(process))


def tokenizer(process):
    chunks = list(engine(process).GetTokenizer(common.GetTokenizerRequest(), timeout=WAIT))
    data = b"".join(c.data for c in chunks)
    assert [c.sha256 for c in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    files = zipfile.ZipFile(io.BytesIO(data))
    assert files.testzip() is None and files.namelist() == ["tokenizer.json", "tokenizer_config.json"]
    assert json.loads(files.read("tokenizer_config.json"))["eos_token"]
    return Tokenizer.from_str(files.read("tokenizer.json").decode())


def request_of(ids, kv=None, request_id="", stream=False, **sampling):
    """A greedy request of token ids."""
    sampling = dict({"temperature": 0, "max_tokens": 24}, **sampling)
    r = pb.GenerateRequest(request_id=request_id, tokenized=pb.TokenizedInput(input_ids=ids), stream=stream,
                           sampling_params=pb.SamplingParams(**sampling))
    if kv is not None:
        r.kv_transfer_params_json = kv if isinstance(kv, str) else json.dumps(kv)
    return r


def whole(process, r, timeout=WAIT):
    """The one answer of a request that does not stream."""
    answer, = list(engine(process).Generate(r, timeout=timeout))
    return answer.complete


def hold(process, ids, request_id="", **sampling):
    """What an outside router sends to a prefill node; the answer has the hand-off."""
    sampling = dict({"max_tokens": 1, "ignore_eos": True}, **sampling)
    return whole(process, request_of(ids, {"do_remote_decode": True, "do_remote_prefill": False}, request_id, **sampling))


def code_of(call):
    """The status of a call that must fail, and its code in the trailers ("" when the node is gone)."""
    try:
        call()
    except grpc.RpcError as e:
        return e.code(), dict(e.trailing_metadata() or ()).get("tandem-code", "")
    raise AssertionError("the call did not fail")
