"""cuda_stand_ins.py TORCH_LIB_DIR OUT_DIR: shared libraries that define what torch's wheel wants of CUDA and do nothing,
so that `import torch` computes on the CPU without gigabytes of CUDA wheels. Then: LD_LIBRARY_PATH=OUT_DIR.

A library that torch names and the wheel does not bring is made from the symbols that torch leaves undefined: versioned
ones go where their version belongs, the others all into the first. Every function says "no device" (100)."""
import glob
import os
import re
import subprocess
import sys

CUDA_LIB = re.compile(r"lib(cu|nccl|nv).*\.so")
CUDA_SYMBOL = re.compile(r"(__)?(cuda|cublas|cusparse|cufft|cuFile|curand|cusolver|cudnn|cupti|cu[A-Z]|nccl|nvrtc|nvshmem|"
                         r"nvtx|nvml)")
# Asked even on a CPU: "no stream is being captured".
CAPTURING = "int cudaStreamIsCapturing(void *s, int *out) { (void)s; if (out) *out = 0; return 0; }\n"


def readelf(option, path):
    return subprocess.run(["readelf", "-W", option, path], check=True, capture_output=True, text=True).stdout


def scan(paths):
    """Libraries that are needed, symbols {name: version or ""} that are undefined everywhere."""
    needed, wanted, defined = set(), {}, set()
    for path in paths:
        needed.update(re.findall(r"\(NEEDED\).*\[(.*?)\]", readelf("-d", path)))
        for line in readelf("--dyn-syms", path).splitlines():
            f = line.split()
            if len(f) < 8 or f[4] not in ("GLOBAL", "WEAK"):
                continue
            name, _, version = f[7].partition("@")
            if f[6] != "UND":
                defined.add(name)
            elif f[4] == "GLOBAL":
                wanted[name] = version.lstrip("@")
    return needed, {n: v for n, v in wanted.items() if n not in defined}


def body(name):
    if name == "cudaStreamIsCapturing":
        return CAPTURING
    if "ErrorString" in name or "ErrorName" in name:
        return f'const char *{name}(void) {{ return "no CUDA here"; }}\n'
    return f"long {name}(void) {{ return {0 if name.startswith('__') else 100}; }}\n"


def build(out, lib, symbols):
    versions = sorted({v for v in symbols.values() if v})
    with open(out + "/x.c", "w", encoding="ascii") as f:
        f.write("int stand_in;\n" + "".join(body(n) for n in sorted(symbols)))
    command = ["gcc", "-w", "-shared", "-fPIC", "-o", f"{out}/{lib}", out + "/x.c", f"-Wl,-soname,{lib}"]
    if versions:
        with open(out + "/x.map", "w", encoding="ascii") as f:
            for v in versions:
                f.write(f"{v} {{ global: {' '.join(n + ';' for n in symbols if symbols[n] == v)} }};\n")
        command.append(f"-Wl,--version-script={out}/x.map")
    subprocess.run(command, check=True)


def main():
    source, out = sys.argv[1:3]
    os.makedirs(out, exist_ok=True)
    needed, wanted = scan(glob.glob(source + "/*.so*"))
    missing = sorted(n for n in needed if CUDA_LIB.match(n) and not os.path.exists(os.path.join(source, n)))
    of = {lib: {} for lib in missing}
    for name, version in wanted.items():
        owner = next((lib for lib in missing if version and belongs(version, lib)), None)
        if owner is None and CUDA_SYMBOL.match(name):
            owner = missing[0]
        if owner is not None:
            of[owner][name] = version
    for lib in missing:
        build(out, lib, of[lib])
    print(f"{len(missing)} libraries, {sum(map(len, of.values()))} functions in {out}")


def belongs(version, lib):
    """libcublas.so.13 is versioned by its own name, nvshmem by NVSHMEM."""
    return version == lib or version.lower() in lib


if __name__ == "__main__":
    main()
