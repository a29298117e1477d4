"""Turns a FileDescriptorSet into a C file: each file's descriptor as bytes, and the table of all symbols.

    embed.py descriptors.bin out.c

Reads the few fields it needs of descriptor.proto itself: the build needs no protobuf for Python.
"""
import sys


def fields(data):
    """(field number, value) of a message; value is an int or bytes."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while at < len(data):
        tag = varint()
        kind = tag & 7
        if kind == 0:
            yield tag >> 3, varint()
        elif kind == 2:
            size = varint()
            yield tag >> 3, data[at:at + size]
            at += size
        else:
            at += {1: 8, 5: 4}[kind]


def all_of(data, number):
    return [v for n, v in fields(data) if n == number]


def text_of(data, number):
    found = all_of(data, number)
    return found[0].decode() if found else ""


def message_symbols(data, prefix):
    name = prefix + text_of(data, 1)
    yield name
    for value in all_of(data, 2):  # fields
        yield name + "." + text_of(value, 1)
    for value in all_of(data, 8):  # oneofs
        yield name + "." + text_of(value, 1)
    for nested in all_of(data, 3):
        yield from message_symbols(nested, name + ".")
    for enum in all_of(data, 4):
        yield from enum_symbols(enum, name + ".")


def enum_symbols(data, prefix):
    yield prefix + text_of(data, 1)
    for value in all_of(data, 2):  # values live beside their enumeration
        yield prefix + text_of(value, 1)


def symbols(data):
    package = text_of(data, 2)
    prefix = package + "." if package else ""
    for message in all_of(data, 4):
        yield from message_symbols(message, prefix)
    for enum in all_of(data, 5):
        yield from enum_symbols(enum, prefix)
    for service in all_of(data, 6):
        name = prefix + text_of(service, 1)
        yield name
        for method in all_of(service, 2):
            yield name + "." + text_of(method, 1)


def imports(files, data):
    """Indices of the files that a file imports, directly or not."""
    names = [text_of(f, 1) for f in files]
    found = []
    for name in all_of(data, 3):
        i = names.index(name.decode())
        found += [i] + imports(files, files[i])
    return list(dict.fromkeys(found))


def main():
    with open(sys.argv[1], "rb") as f:
        files = all_of(f.read(), 1)
    with open(sys.argv[2], "w", encoding="ascii") as out:
        out.write('#include "proto/grpc_std.h"\n\n')
        for i, data in enumerate(files):
            out.write(f"static const uint8_t file_{i}[] = {{{','.join(map(str, data))}}};\n")
            out.write(f"static const uint32_t imports_{i}[] = {{{','.join(map(str, imports(files, data) + [0]))}}};\n")
        out.write("const struct td_pb_file td_pb_files[] = {\n")
        for i, data in enumerate(files):
            out.write(f'    {{"{text_of(data, 1)}", file_{i}, sizeof file_{i}, imports_{i}, {len(imports(files, data))}}},\n')
        out.write(f"}};\nconst uint32_t td_pb_n_files = {len(files)};\n")
        table = [(name, i) for i, data in enumerate(files) for name in symbols(data)]
        out.write("const struct td_pb_symbol td_pb_symbols[] = {\n")
        for name, i in table:
            out.write(f'    {{"{name}", {i}}},\n')
        out.write(f"}};\nconst uint32_t td_pb_n_symbols = {len(table)};\n")


if __name__ == "__main__":
    main()
