#!/bin/bash
# Checks, sanitizers, transformers, candidates and times of the GPU code on a machine that has a device, with the peer
# beside them: text on standard output, JSON in OUT.
# run.sh BIN OUT [PART ...]      exit status 1 when a part failed
#   BIN   folder with gpu-bench and engine-check, for some parts tandemctl and tandem-prefill (pack.sh makes one to carry)
#   PEER  (environment) a program that prints the peer's JSON lines; without it those columns stay empty
#   PART  one or more of the names below, or "first" or "second"; none: all
#   BUDGET (environment) seconds: what does not end in them is cut off or left out, the table is printed all the same.
#         "first" or "second" alone: 540; otherwise none
set -u
parts_first="checks checks-sm80 checks-ptx sanitize transformers engine serve variants"
parts_second="times times-sm80 transformers-8b"
usage() {
    sed -n '2,10p' "$0" | cut -c3-
    echo "parts: $parts_first $parts_second layers"
    exit 2
}
[ $# -ge 2 ] || usage
bin=$(readlink -f "$1")
out=$2
shift 2
budget=${BUDGET:-0}
case "$*" in first | second) budget=${BUDGET:-540} ;; esac
here=$(dirname "$(readlink -f "$0")")
mkdir -p "$out"
export LD_LIBRARY_PATH=$bin/lib:${LD_LIBRARY_PATH:-}:/usr/local/cuda/lib64
python=${PYTHON:-python3}
failed=0
: > "$out/parts.json"

# ---- one command: its time and how it ended, as a JSON line; of one that failed, what it said last ----
note() { # PART WHAT RESULT SECONDS
    printf '{"part": "%s", "what": "%s", "result": "%s", "seconds": %d}\n' "$1" "$2" "$3" "$4" >> "$out/parts.json"
    [ "$3" = ok ] || echo "$1: $2: $3 after $4 s"
}
run() { # PART LIMIT LOG COMMAND ...
    local part=$1 limit=$2 log=$3 began=$SECONDS file
    shift 3
    if [ "$budget" -gt 0 ] && [ $((budget - SECONDS)) -lt "$limit" ]; then
        limit=$((budget - SECONDS))
        [ "$limit" -ge 5 ] || {
            skip "$part" "$(basename "$1") ${*:2:9}: no time left of $budget s"
            failed=1
            return 0
        }
    fi
    timeout -k 5 "$limit" "$@" > "$out/.said" 2> "$out/.warned"
    local rc=$? result=ok
    cat "$out/.said" >> "$out/$log"
    cat "$out/.warned" >> "$out/errors.log"
    case $rc in
        0) ;;
        124) result=timeout ;;
        *) result=failed ;;
    esac
    note "$part" "$(basename "$1") ${*:2:9}" "$result" $((SECONDS - began))
    [ $rc -eq 0 ] || {
        failed=1
        echo "$part: exit status $rc; its last words:"
        for file in .said .warned; do grep -v level=info "$out/$file" | tail -8 | cut -c1-200; done
    }
    rm -f "$out/.said" "$out/.warned"
    return $rc
}
skip() { # PART WHY
    note "$1" "$2" skipped 0
}
theirs() {
    [ -z "${PEER:-}" ] || run times "${PEER_LIMIT:-150}" peer.json "$python" "$PEER" "$@"
}

# compute-sanitizer: on the path, or where CUDA's installers put it.
sanitizer() {
    local tool
    for tool in "$(command -v compute-sanitizer)" /usr/local/cuda*/bin/compute-sanitizer \
        /usr/local/cuda*/compute-sanitizer/compute-sanitizer /opt/nvidia/*/compute-sanitizer/compute-sanitizer; do
        [ -x "$tool" ] && echo "$tool" && return
    done
}

# ---- parts ----
checks() { # PART [--sm_80]
    local part=$1 c
    shift
    for c in check-pointwise check-flat check-decode check-prefill check-product check-sample check-model; do
        run "$part" 90 check.log "$bin/gpu-bench" "$@" $c
    done
    for c in check-chain check-layers; do
        [ $# -gt 0 ] || run "$part" 90 check.log "$bin/gpu-bench" $c # Hopper's alone
    done
    run "$part" 180 check.log "$bin/engine-check" "$@" check
}
sanitize() {
    local tool path
    tool=$(sanitizer)
    if [ -z "$tool" ]; then
        skip sanitize "no compute-sanitizer on this machine"
        return
    fi
    for path in "" --sm_80; do
        run sanitize 60 check.log "$tool" --tool memcheck --error-exitcode 1 "$bin/gpu-bench" $path check-race
        run sanitize 60 check.log "$tool" --tool racecheck --error-exitcode 1 "$bin/gpu-bench" $path check-race
        # racecheck of the engine: see kernels/cuda/NOTES.md
        run sanitize 60 check.log "$tool" --tool memcheck --error-exitcode 1 "$bin/engine-check" $path small
    done
}
transformers() { # PART LIMIT SHAPE ...
    local part=$1 limit=$2
    shift 2
    if ! "$python" -c 'import torch, transformers' 2>> "$out/errors.log" || [ ! -x "$bin/tandemctl" ]; then
        skip "$part" "needs torch, transformers and tandemctl"
        return
    fi
    run "$part" "$limit" ours.json "$python" "$here/hf_check.py" "$bin/engine-check" "$bin/tandemctl" "$@"
    [ "$part" != transformers ] ||
        run "$part" "$limit" ours.json "$python" "$here/hf_check.py" "$bin/engine-check --sm_80" "$bin/tandemctl" "$@"
}
times() { # the peer first: the card is then as warm for us as it was for the peer
    run times 120 ours.json "$bin/gpu-bench" ceiling flat
    local c
    for c in decode attn step prefill; do
        theirs $c
        run times 120 ours.json "$bin/gpu-bench" $c
    done
}
engine() {
    local c
    for c in step prefill mixed; do
        run engine 120 ours.json "$bin/engine-check" $c
    done
}
serve() {
    if [ ! -x "$bin/tandem-prefill" ] || [ ! -x "$bin/tandemctl" ] || ! "$python" -c 'import openai' 2>> "$out/errors.log"; then
        skip serve "needs tandem-prefill, tandemctl and the openai package"
        return
    fi
    local model
    model=$(mktemp -d)/m
    "$bin/tandemctl" make-model --shape tiny-llama --seed 1 "$model" >> "$out/errors.log" 2>&1
    run serve 180 ours.json "$python" "$here/serve_check.py" "$bin/tandem-prefill" "$model"
}
variants() {
    run variants 120 ours.json "$bin/gpu-bench" variants-step
}
# Whole layers in one launch: checked by the build in which a wait that never ends traps, before any other runs.
layers() {
    run layers 60 check.log "$bin/gpu-bench" check-chain
    run layers 60 check.log "$bin/gpu-bench-spin" check-layers-small || return
    run layers 120 check.log "$bin/gpu-bench-spin" check-layers || return
    run layers 120 check.log "$bin/gpu-bench" check-layers || return
    run layers 180 layers.json "$bin/gpu-bench" variants-layers
    run layers 60 layers.json "$bin/gpu-bench-times" times-layers
    "$python" "$here/layers_table.py" "$out/layers.json" | tee "$out/layers.txt"
}

[ $# -gt 0 ] || set -- first second
for part in $(for p in "$@"; do
    case $p in first) echo "$parts_first" ;; second) echo "$parts_second" ;; *) echo "$p" ;; esac
done); do
    began=$SECONDS
    case $part in
        checks) checks checks ;;
        checks-sm80) checks checks-sm80 --sm_80 ;;
        # what a device newer than the build would run: the driver compiles the PTX
        checks-ptx) run checks-ptx 120 check.log env CUDA_FORCE_PTX_JIT=1 CUDA_CACHE_DISABLE=1 "$bin/gpu-bench" --sm_80 \
            check-pointwise check-flat check-decode check-prefill check-sample ;;
        sanitize | times | engine | serve | variants | layers) $part ;;
        times-sm80) run times-sm80 120 ours-sm80.json "$bin/gpu-bench" --sm_80 flat decode attn step ;;
        transformers) transformers transformers 100 tiny-llama tiny-qwen2 tiny-qwen3 ;;
        transformers-8b) transformers transformers-8b 240 llama3-8b qwen3-8b ;;
        *) usage ;;
    esac
    echo "$part: $((SECONDS - began)) s"
done
[ ! -e "$out/check.log" ] || {
    grep -E '^FAIL|ERROR SUMMARY: [1-9]|RACECHECK SUMMARY: [1-9]' "$out/check.log"
    echo "checks: $(grep -c '^ok' "$out/check.log") passed, $(grep -c '^FAIL' "$out/check.log") failed"
}
"$python" "$here/table.py" "$out/ours.json" "$out/peer.json" "$out/table.json" "$out/parts.json" "$out/ours-sm80.json" |
    tee "$out/table.txt"
exit $failed
