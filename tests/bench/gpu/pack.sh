#!/bin/bash
# pack.sh BUILD OUT: the programs that run.sh wants from a build folder, stripped, with the shared libraries that another
# machine may lack (all but the C and C++ run-time's), to be carried to a machine without a compiler.
set -eu
build=$1
out=$2
mkdir -p "$out/lib"
for program in tests/bench/gpu/gpu-bench tests/bench/gpu/gpu-bench-spin tests/bench/gpu/gpu-bench-times tests/bench/gpu/engine-check ctl/tandemctl prefill-node/tandem-prefill; do
    found=$(find "$build" -path "*/$(basename "$program")" -type f -perm -u+x | head -1)
    if [ -z "$found" ]; then
        echo "pack.sh: $(basename "$program") is not built, left out"
        continue
    fi
    strip -o "$out/$(basename "$program")" "$found"
    ldd "$found" | awk '/=> \// { print $3 }' | grep -vE '/(libc|libm|libgcc_s|libstdc\+\+|libdl|librt|libpthread)\.so' |
        xargs -r cp -Lt "$out/lib"
done
du -sh "$out"
