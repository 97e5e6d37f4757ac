#!/bin/sh
# correct.sh FOLDER COLLECTIVES ARGS...: each tool with these arguments must exit with 0, print a row for every type,
# operator, root and size asked for, and have 0 in every #wrong column. Sizes: 0 bytes, one element, some thousand
# bytes, and an odd one that takes many messages.
set -u
folder=$1
collectives=$2
shift 2

# run TOOL ROWS IN_PLACE ARGS...: ROWS without the roots; IN_PLACE is what the second #wrong column has to have.
run() {
  tool=$1 rows=$2 in_place=$3
  shift 3
  out=$("$folder/$tool" -n 1 -w 1 "$@") || {
    echo "$tool $*: exit status $?"
    echo "$out"
    exit 1
  }
  case $* in *"-r all"*) rows=$((rows * $(echo "$out" | grep -c '^#  Rank '))) ;; esac
  echo "$out" | awk -v tool="$tool" -v rows="$rows" -v in_place="$in_place" '
    /^#/ { next }
    { n++; if ($9 != "0" || $13 != in_place) { print "wrong data: " $0; bad = 1 } }
    END { if (n != rows) { print tool ": " n + 0 " rows instead of " rows; bad = 1 }; exit bad }' || exit 1
  echo "$out" | grep -q '^# Out of bounds values : 0 OK' || exit 1
}

for collective in $collectives; do
  ops=1 op_flags="" root_flags="" in_place=0
  case $collective in all_reduce | reduce | reduce_scatter) ops=5 op_flags="-o all" ;; esac
  case $collective in broadcast | reduce | gather | scatter) root_flags="-r all" ;; esac
  case $collective in alltoall | alltoallv | sendrecv | barrier) in_place=N/A ;; esac
  if [ "$collective" = barrier ]; then
    run barrier_perf 1 N/A -c 5 "$@"
    continue
  fi
  # The flags are words. All types with all operators and all roots would take too long.
  flags=${op_flags:-$root_flags}
  run "${collective}_perf" $((12 * 3 * ops)) $in_place -b 0 -e 20000 -f 1031 -d all $flags "$@"
  run "${collective}_perf" $ops $in_place -b 1000003 -e 1000003 -d uint8 $op_flags $root_flags "$@"
done
