#!/bin/sh
# corrupted.sh FOLDER SHIM: with a faulty library the tools count the mistakes on each rank and fail.
set -u
folder=$1
shim=$2

# check COLLECTIVE WRONG TEXT ARGS...: the number of wrong results on two ranks, out of place and in place, and a message.
check() {
  collective=$1 wrong=$2 text=$3
  shift 3
  out=$(LD_PRELOAD=$shim "$folder/${collective}_perf" --procs 2 -b 1K -e 1K "$@" 2>&1)
  status=$?
  echo "$out"
  [ $status -eq 1 ] || exit 1
  echo "$out" | grep -q "^# Out of bounds values : $wrong FAILED" || exit 1
  echo "$out" | grep -q "^\[rank $text" || exit 1
}

check all_reduce 4 '1\] 1 wrong: 1024 bytes bfloat16 sum root -*[0-9]*, in place' -d bfloat16
check reduce_scatter 4 '0\] 1 wrong: 1024 bytes float sum root -*[0-9]*, in place'
check gather 2 '1\] 1 wrong: 1024 bytes float none root 0, in place'
check alltoall 256 '1\] 128 wrong: 1024 bytes float none root -*[0-9]*, out of place'
# A rank has at most 255 floats here: 1 byte behind them is wrong, and 1 in the middle of the other rank's buffer.
check alltoallv 2 '1\] 1 wrong: 1020 bytes float none root -*[0-9]*, out of place'
# The other rank may be late anyway, so there is more than one try.
check barrier 1 '[01]\] tuttiBarrier returned before the last rank' -c 50
