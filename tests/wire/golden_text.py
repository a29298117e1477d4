#!/usr/bin/env python3
"""The text beside each golden encoding, checked by an independent implementation: protoc.

check: every NAME.txt encodes (protoc --encode) to NAME.bin, byte for byte.
write: makes NAME.txt from NAME.bin (protoc --decode); for newer_* the text is the source and the .bin is made.
"""
import pathlib
import shutil
import subprocess
import sys

TYPES = {"node_info": "NodeInfo", "router_info": "RouterInfo"}


def protoc(root, mode, name, data, schema="proto/wire.proto"):
    kind = "tandem.wire.v1." + TYPES.get(name, "Message")
    cmd = ["protoc", f"-I{root}", f"--{mode}={kind}", schema]
    return subprocess.run(cmd, input=data, check=True, capture_output=True, cwd=root).stdout


def newer(root, folder, mode, name, data):
    """Messages of a future version are described against tests/wire/golden/newer.proto."""
    cmd = ["protoc", f"-I{folder}", f"--{mode}=tandem.wire.v1.Message", "newer.proto"]
    return subprocess.run(cmd, input=data, check=True, capture_output=True, cwd=folder).stdout


def main():
    mode, root = sys.argv[1], pathlib.Path(sys.argv[2]).resolve()
    folder = root / "tests/wire/golden"
    if shutil.which("protoc") is None:
        print("protoc is not installed, skipping")
        sys.exit(77)
    bad = 0
    names = sorted({p.stem for p in folder.iterdir() if p.suffix in (".bin", ".txt")})
    for name in names:
        text, binary = folder / f"{name}.txt", folder / f"{name}.bin"
        tool = (lambda m, d: newer(root, folder, m, name, d)) if name.startswith("newer_") else (
            lambda m, d: protoc(root, m, name, d))
        if mode == "write":
            if name.startswith("newer_"):
                binary.write_bytes(tool("encode", text.read_bytes()))
            else:
                text.write_bytes(tool("decode", binary.read_bytes()))
        elif tool("encode", text.read_bytes()) != binary.read_bytes():
            print(f"{text}: does not encode to {binary.name}")
            bad += 1
    print(f"{len(names)} samples, {bad} wrong")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
