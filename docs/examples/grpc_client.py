"""A streaming answer over gRPC: python3 grpc_client.py HOST:PORT "question" [API-KEY]

Needs grpcio and the stubs of proto/tandem.proto (docs/grpc.md says how to make them) on PYTHONPATH.
"""
import sys

import grpc
import tandem_pb2
import tandem_pb2_grpc


def main():
    address, question = sys.argv[1:3]
    metadata = [("authorization", "Bearer " + sys.argv[3])] if len(sys.argv) > 3 else None
    chat = tandem_pb2.Chat(messages=[tandem_pb2.ChatMessage(role="user", content=question)])
    request = tandem_pb2.GenerateRequest(
        chat=chat, sampling=tandem_pb2.SamplingParams(temperature=0, max_tokens=64))
    with grpc.insecure_channel(address) as channel:
        engine = tandem_pb2_grpc.EngineStub(channel)
        try:
            for answer in engine.Generate(request, metadata=metadata, timeout=60):
                if answer.HasField("delta"):
                    print(answer.delta.text, end="", flush=True)
                else:
                    print(f"\n[{answer.usage.prompt_tokens} prompt tokens, {answer.usage.completion_tokens} generated]")
        except grpc.RpcError as e:
            code = dict(e.trailing_metadata() or ()).get("tandem-code", "")
            sys.exit(f"{e.code().name} {code}: {e.details()}")


if __name__ == "__main__":
    main()
