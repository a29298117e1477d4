#!/bin/sh
# Shows that the simulator catches what it is for: for each planted bug (meson_options.txt) builds a simulator with
# it and prints the first seeds that fail. The same runs are the tests sim/catches_* of the suite `sim`.
#
#     tests/sim/bugs.sh [build folder] [last seed]
build=${1:-build/test}
last=${2:-1000}
bugs="skipped_release dropped_epoch_check double_grant lost_cancel forgotten_quarantine resend_twice"
missed=0
ninja -C "$build" sim-bugs >/dev/null || exit 1
for bug in $bugs; do
    if out=$("$build/tests/sim/tandem-sim-$bug" --seeds "1..$last" --expect-failure); then
        echo "$bug: $(echo "$out" | grep -m 1 FAILED)"
        echo "$out" | grep -m 1 again:
    else
        echo "$bug: NOT CAUGHT by seeds 1..$last"
        missed=$((missed + 1))
    fi
done
[ "$missed" -eq 0 ]
