#!/bin/sh
# shapes.sh FOLDER: size, count, root and busbw of each collective. 1000 bytes are 250 floats, or 83 for each of three
# ranks, which is 996 bytes together.
set -u
folder=$1
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

# check COLLECTIVE ROW FACTOR ARGS...: the beginning of the row, and busbw / algbw in the JSON (null: there is none).
check() {
  collective=$1 row=$2 factor=$3
  shift 3
  case $* in *--sizes-from*) ;; *) set -- -b 1000 -e 1000 "$@" ;; esac
  "$folder/${collective}_perf" --procs 3 -n 2 -J "$tmp/json" "$@" >"$tmp/out" 2>&1 &&
    grep -q "^ *$row\( \|$\)" "$tmp/out" &&
    awk -F '[:,]' -v factor="$factor" '
      /"alg_bw"/ { alg = $2 }
      /"bus_bw"/ {
        n++
        if (factor == "null") { bad += $2 !~ /null/; next }
        bad += $2 <= 0 || $2 / alg > factor * 1.000001 || $2 / alg < factor * 0.999999
      }
      END { exit n == 0 || bad > 0 }' "$tmp/json" && echo "ok $collective" && return
  echo "FAILED $collective: expected '$row' and busbw / algbw $factor"
  cat "$tmp/out" "$tmp/json"
  failures=$((failures + 1))
}

check all_reduce '1000 *250 *float *sum *-1' 1.3333333
check broadcast '1000 *250 *float *none *2' 1 -r 2
check reduce '1000 *250 *float *sum *1' 1 -r 1
check sendrecv '1000 *250 *float *none *-1' 1
check all_gather '996 *83 *float *none *-1' 0.6666667
check reduce_scatter '996 *83 *float *max *-1' 0.6666667 -o max
check alltoall '996 *83 *float *none *-1' 0.6666667
# Of 83 x 3 floats rank 2 sends 1 + 4 + 2 eighths, rank 0 receives 2 + 4 + 1; each is rounded down.
check alltoallv '868 *83 *float *none *-1' 0.6666667
check gather '996 *83 *float *none *2' 0.6666667 -r 2
check scatter '996 *83 *float *none *1' 0.6666667 -r 1
check barrier '0 *0 *none *none *-1 *[0-9.]* *N/A *N/A *0 *N/A *N/A *N/A *N/A' null
printf 'a 300\nb 7\nc 0\n' >"$tmp/list"
check all_gather '1224 *102 *float *none *-1' 0.6666667 --sizes-from "$tmp/list"
check alltoall '1224 *102 *float *none *-1' 0.6666667 --sizes-from "$tmp/list" -y 0 -u 1 -m 2 -I 1
echo "done: $failures failures"
exit $((failures > 0))
