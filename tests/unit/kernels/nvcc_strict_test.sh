#!/bin/sh
# nvcc_strict_test.sh SCRIPT: kernels/cuda/nvcc_strict.sh with a stand-in for the compiler that says what ptxas says.
set -eu
strict=$1
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
fails=0

try() { # WANTED-STATUS WHAT TEXT [STATUS-OF-THE-COMPILER]
    printf '%s\n' "$3" > "$dir/text"
    printf '#!/bin/sh\ncat "%s/text" >&2\nexit %s\n' "$dir" "${4:-0}" > "$dir/nvcc"
    chmod +x "$dir/nvcc"
    rc=0
    "$strict" "$dir/nvcc" -c x.cu > "$dir/said" 2>&1 || rc=$?
    [ "$rc" = "$1" ] || { echo "not ok: $2: status $rc, wanted $1"; cat "$dir/said"; fails=1; }
}

clean="ptxas info    : Compiling entry function 'k' for 'sm_90a'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 80 registers, used 3 barriers"
try 0 "clean" "$clean"
[ ! -s "$dir/said" ] || { echo "not ok: a clean build says nothing"; fails=1; }
try 0 "a few bytes spilled" "    16 bytes stack frame, 20 bytes spill stores, 20 bytes spill loads"
try 1 "many bytes spilled" "    168 bytes stack frame, 348 bytes spill stores, 636 bytes spill loads"
try 1 "serialised" "ptxas info    : (C7511) Potential Performance Loss: wgmma.mma_async instructions are serialized"
try 1 "setmaxnreg ignored" "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored to maintain minimum register requirements."
try 2 "the compiler's own failure" "x.cu(1): error: what is this" 2
grep -q 'error: what is this' "$dir/said" || { echo "not ok: the compiler's words are lost"; fails=1; }
exit $fails
