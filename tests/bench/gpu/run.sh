#!/bin/bash
# Checks, times, measures the peer on the same machine, prints the table.
# run.sh GPU_BENCH [PEER.py] [OUT]     PEER: "-" for none
set -u
bench=$1
peer=${2:--}
out=${3:-gpu-out}
here=$(dirname "$0")
mkdir -p "$out"
export LD_LIBRARY_PATH=${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
failed=0
for part in check-pointwise check-flat check-decode check-prefill check-sample check-model; do
    timeout 90 "$bench" "$part" >> "$out/check.log" 2>&1 || failed=1
done
grep -v '^ok' "$out/check.log"
echo "checks: $(grep -c '^ok' "$out/check.log") passed, $(grep -c '^FAIL' "$out/check.log") failed"
ours() {
    timeout 120 "$bench" "$@" >> "$out/ours.json" 2>> "$out/errors.log" || echo "gpu-bench $*: failed"
}
theirs() {
    if [ "$peer" != - ]; then
        timeout "${PEER_LIMIT:-150}" python3 "$peer" "$@" >> "$out/peer.json" 2>> "$out/errors.log" ||
            echo "peer $*: failed or out of time"
    fi
}
# The peer first: the card is then as warm for us as it was for the peer.
ours ceiling flat
theirs decode
ours decode
theirs attn
ours attn
theirs step
ours step
theirs prefill
ours prefill
# The engine over the same operations, where it is built beside gpu-bench.
engine=$(dirname "$bench")/engine-check
if [ -x "$engine" ]; then
    timeout 120 "$engine" check 2>> "$out/errors.log" | tee "$out/engine.log" | grep -v '^ok' || true
    echo "engine checks: $(grep -c '^ok' "$out/engine.log") passed, $(grep -c '^FAIL' "$out/engine.log") failed"
    grep -q '^FAIL' "$out/engine.log" && failed=1
    for part in step prefill mixed; do
        timeout 120 "$engine" $part >> "$out/ours.json" 2>> "$out/errors.log" || failed=1
    done
fi
python3 "$here/table.py" "$out/ours.json" "$out/peer.json" "$out/table.json"
exit $failed
