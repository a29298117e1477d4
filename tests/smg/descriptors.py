"""Compares our declaration of VllmEngine with the public one (the package smg-grpc-proto): run in its environment.

    descriptors.py ours.bin     (a FileDescriptorSet)

Every method, message and field of ours must be there with the same number, type, label and presence; a message of ours may leave
fields out. Prints what is left out.
"""
import sys

from google.protobuf import descriptor_pb2, descriptor_pool
from smg_grpc_proto.generated import common_pb2, vllm_engine_pb2


def shape_of(method):
    return method.input_type.full_name, method.output_type.full_name, method.client_streaming, method.server_streaming


def public(name):
    for module in (vllm_engine_pb2, common_pb2):
        if name in module.DESCRIPTOR.message_types_by_name:
            return module.DESCRIPTOR.message_types_by_name[name]
    raise AssertionError(f"there is no public message {name}")


def kind(field):
    """Everything of a field that is on the wire or that a stub shows."""
    of = field.message_type.full_name if field.message_type is not None else None
    return (field.number, field.type, field.is_repeated, field.has_presence and field.message_type is None, of)


def compare(ours, theirs):
    for field in ours.fields:
        other = theirs.fields_by_name.get(field.name)
        assert other is not None and kind(field) == kind(other), f"{ours.full_name}.{field.name}: {kind(field)} is not public"
    for nested in ours.nested_types:
        compare(nested, theirs.nested_types_by_name[nested.name])
    return [f.name for f in theirs.fields if f.name not in ours.fields_by_name]


def main():
    with open(sys.argv[1], "rb") as f:
        files = descriptor_pb2.FileDescriptorSet.FromString(f.read()).file
    pool = descriptor_pool.DescriptorPool()
    fields, left_out, messages = 0, 0, 0
    for file in files:
        pool.Add(file)
    for file in files:
        for message in pool.FindFileByName(file.name).message_types_by_name.values():
            theirs = public(message.name)
            assert theirs.full_name == message.full_name, message.full_name
            missing = compare(message, theirs)
            messages, fields, left_out = messages + 1, fields + len(message.fields), left_out + len(missing)
            if missing:
                print(f"{message.name} leaves out: {', '.join(missing)}")
    ours = pool.FindServiceByName("vllm.grpc.engine.VllmEngine")
    theirs = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"]
    assert ours.full_name == theirs.full_name
    for method in ours.methods:
        other = theirs.methods_by_name[method.name]
        assert shape_of(method) == shape_of(other), method.name
    print(f"VllmEngine: {len(ours.methods)} methods, {messages} messages, {fields} fields as the public ones; {left_out} left out")


if __name__ == "__main__":
    main()
