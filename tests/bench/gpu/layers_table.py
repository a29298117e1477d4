"""Prints what `gpu-bench variants-layers` and `gpu-bench-times times-layers` said, shortly.

    python3 layers_table.py layers.json

One line per batch, context and way of running a step: the median of its rounds, all rounds, and the ratio to the first way's
(today's chains) within the same case; then when a layer's stages have their input and end, us from the end of the qkv before.
"""
import json
import statistics
import sys


def main(path):
    cases, times, blocks = {}, [], []
    with open(path, encoding="utf-8") as lines:
        for line in lines:
            if not line.startswith("{"):
                continue
            say = json.loads(line)
            if say["name"].startswith("step."):
                case = cases.setdefault((say["B"], say["ctx"]), {})
                case.setdefault(say["name"], []).append(say["us_median"])
            elif say["name"] == "layers.times":
                times.append(say)
            elif say["name"] == "layers.times blocks":
                blocks.append(next(v for v in say.values() if isinstance(v, list)))
    for (rows, ctx), ways in cases.items():
        base = statistics.median(next(iter(ways.values())))
        for name, rounds in ways.items():
            us = statistics.median(rounds)
            print(f"{rows} x {ctx:<5} {name:<32} {us:9.1f} us  {us / base:6.3f}  {[round(x) for x in rounds]}")
    for t in times:
        first, last = t["us_input"]
        print(f"{t['how']:<24} {t['B']} x {t['ctx']:<5} {t['stage']:<10}", end=" ")
        print(f"input {first:7.2f} .. {last:7.2f}, last end {t['us_end'][1]:7.2f}")
    for b in blocks:
        late = sorted(b)
        print("gate+up, us before the last block: of two tiles", [round(x, 1) for x in late[: len(late) * 2 // 3 : 8]])
        print("  the ten latest blocks:", sorted(range(len(b)), key=lambda i: b[i])[:10])


if __name__ == "__main__":
    main(sys.argv[1])
