#!/bin/sh
# nvcc_strict.sh NVCC ARG ...: runs the compiler, and fails too where it succeeds with code that is not what was meant: wgmma
# that ptxas serialises (C7510, C7514, C7520), setmaxnreg that it ignores (C7508), or more than SPILL bytes of registers spilled.
SPILL=64
said=$(mktemp) || exit 1
trap 'rm -f "$said"' EXIT
"$@" -Xptxas -v > "$said" 2>&1
rc=$?
grep -v '^ptxas info' "$said" | grep -v 'bytes stack frame' >&2
[ $rc -eq 0 ] || exit $rc
awk -v most=$SPILL '
    /Compiling entry function/ { kernel = $0 }
    /\(C75(08|10|14|20)\)/ { print; bad = 1 }
    / bytes spill stores/ { if ($5 > most) { print kernel; print; bad = 1 } }
    END { exit bad }' "$said" >&2
