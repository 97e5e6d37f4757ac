#!/bin/sh
# correct.sh FOLDER ARGS...: both tools with these arguments must exit with 0, print a row for every type, operator and
# size, and have 0 in every #wrong column. Each type and operator; sizes of 0 bytes, one element and some thousand bytes.
set -u
folder=$1
shift

run() {
  tool=$1
  shift
  out=$("$folder/$tool" "$@" -n 1 -w 1 -b 0 -e 20000 -f 1031 -d all) || {
    echo "$tool $*: exit status $?"
    echo "$out"
    exit 1
  }
  echo "$out" | awk -v tool="$tool" -v least="$least" '
    /^#/ { next }
    { rows++; if ($9 != "0" || $13 != "0") { print "wrong data: " $0; bad = 1 } }
    END { if (rows < least) { print tool ": only " rows + 0 " rows"; bad = 1 }; exit bad }' || exit 1
  echo "$out" | grep -q '^# Out of bounds values : 0 OK' || exit 1
}

# 12 types x 5 operators x 3 sizes; 12 types x 3 sizes x at least one root.
least=180
run all_reduce_perf -o all "$@"
least=36
run broadcast_perf -r all "$@"
