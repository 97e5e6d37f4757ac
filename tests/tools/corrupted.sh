#!/bin/sh
# corrupted.sh FOLDER SHIM: with a library that gets one element wrong, the tool counts it on each rank and fails.
set -u
out=$(LD_PRELOAD=$2 "$1/all_reduce_perf" --procs 2 -b 1K -e 1K -d bfloat16 2>&1)
status=$?
echo "$out"
[ $status -eq 1 ] || exit 1
echo "$out" | grep -q '^# Out of bounds values : 4 FAILED' || exit 1
echo "$out" | grep -q '^\[rank 1\] 1 wrong: 1024 bytes bfloat16 sum root -*[0-9]*, in place'
