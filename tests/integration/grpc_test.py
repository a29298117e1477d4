"""The gRPC port with stock clients (grpcio, sync and async): services, statuses, cancellation, limits.

Needs the pinned packages of tests/requirements.txt (TANDEM_TEST_PYTHON); stubs are made from proto/tandem.proto, unchanged.
"""
import os
import subprocess
import sys

PINNED = os.environ.get("TANDEM_TEST_PYTHON", sys.executable)
if os.path.abspath(sys.executable) != os.path.abspath(PINNED):
    os.execv(PINNED, [PINNED] + sys.argv)  # the interpreter that has the packages

from harness import ROOT, SCRATCH, cluster, run, wait_for  # noqa: E402

STUBS = os.path.join(SCRATCH, "stubs")
os.makedirs(STUBS)
subprocess.run([sys.executable, "-m", "grpc_tools.protoc", "-I" + os.path.join(ROOT, "proto"), "--python_out=" + STUBS,
                "--grpc_python_out=" + STUBS, "tandem.proto"], check=True)
sys.path.insert(0, STUBS)

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


def test_the_shared_cluster_stops_cleanly():
    if SHARED is not None:
        assert set(SHARED.stop().values()) == {0}


run(globals())
