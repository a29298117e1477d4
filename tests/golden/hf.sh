#!/bin/bash
# Makes tests/golden/hf again: hf.sh TANDEMCTL. Installs transformers and torch (by hash, 1.6 GB) into a folder of the
# cache, once; needs Python 3.11 on x86_64. What is committed must come out unchanged but for the last bits of floats.
set -eu
tandemctl=$(readlink -f "$1")
here=$(dirname "$(readlink -f "$0")")
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tandem/hf-oracle
if [ ! -e "$cache/ready" ]; then
    rm -rf "$cache"
    python3 -m venv "$cache"
    "$cache/bin/pip" install -q --require-hashes --no-deps --only-binary :all: -r "$here/requirements-hf.txt"
    python3 "$here/cuda_stand_ins.py" "$(echo "$cache"/lib/python3*/site-packages/torch/lib)" "$cache/stand-ins"
    touch "$cache/ready"
fi
LD_LIBRARY_PATH=$cache/stand-ins "$cache/bin/python" "$here/hf_oracle.py" "$tandemctl" "$here/hf"
