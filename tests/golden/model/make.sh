#!/bin/bash
# Makes the goldens of this folder again: make.sh PYTHON TINY_GGUF MODEL. PYTHON has ../requirements.txt installed,
# TINY_GGUF is the built program, MODEL the default model's file. What is committed must come out unchanged but for the
# last bits of floats (another BLAS adds in another order).
set -eu
python=$1 tiny=$2 model=$3
here=$(dirname "$(readlink -f "$0")")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
oracle() { "$python" "$here/../oracle.py" "$@"; }
exact() { "$python" "$here/../exact.py" "$@"; }

oracle blocks "$here/blocks.bin"
"$tiny" "$tmp/mix.gguf" --seed 1 --type mix --layers 2 --untied
"$tiny" "$tmp/q4_1.gguf" --seed 2 --type q4_1 --layers 3
for name in mix q4_1; do
    oracle prompts "$tmp/$name.gguf" "$here/tiny-$name.f32.bin" --ids "$here/tiny_ids.json"
    oracle prompts "$tmp/$name.gguf" "$here/tiny-$name.int8.bin" --ids "$here/tiny_ids.json" --int8
    oracle prompts "$tmp/$name.gguf" "$here/tiny-$name.head16.bin" --ids "$here/tiny_ids.json" --int8 --head16
    exact prompts "$tmp/$name.gguf" "$here/tiny-$name.exact.bin" --ids "$here/tiny_ids.json"
done
oracle prompts "$model" "$here/smollm2.f32.bin"
oracle prompts "$model" "$here/smollm2.int8.bin" --int8
"$python" "$here/../demo.py" "$model" "$here/demo.json"
oracle windows "$model" /usr/share/common-licenses/GPL-3 "$here/smollm2.windows.bin"
oracle windows "$model" /usr/share/common-licenses/GPL-3 "$here/smollm2.windows.head16.bin" --head16
exact windows "$model" "$here/smollm2.windows.head16.bin" "$here/smollm2.windows.exact.bin"
