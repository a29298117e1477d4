#!/bin/sh
# nvcc_strict.sh NVCC ARG ...: runs the compiler, and fails too where it succeeds with code that is not what was meant: wgmma
# that ptxas serialises, setmaxnreg that it ignores, or more than SPILL bytes of registers spilled.
SPILL=64
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$@" -Xptxas -v > "$said" 2>&1
rc=$?
grep -v '^ptxas info' "$said" | grep -v 'bytes stack frame' >&2
[ $rc -eq 0 ] || exit $rc
awk -v most=$SPILL '
    /Compiling entry function/ { kernel = $0 }
    /instructions are serialized|setmaxnreg.*ignored/ { print; bad = 1 }
    / bytes spill stores/ { if ($5 > most) { print kernel; print; bad = 1 } }
    END { exit bad }' "$said" >&2
