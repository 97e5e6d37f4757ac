# To be sourced with $folder set: runs a perf tool for a collective, and checks every row of its table.

# Sets a collective's traits: the number of operators, the flags for all operators and roots, and the second #wrong column.
traits() {
  ops=1 op_flags="" root_flags="" in_place=0
  case $1 in all_reduce | reduce | reduce_scatter) ops=6 op_flags="-o all" ;; esac
  case $1 in broadcast | reduce | gather | scatter) root_flags="-r all" ;; esac
  case $1 in all_reduce_quantized | alltoall | alltoallv | sendrecv | barrier) in_place=N/A ;; esac
}

# run COLLECTIVE ROWS ARGS...: requires exit status 0, that many rows (times the roots), and 0 in every #wrong column. Adds
# to $rows_seen. Otherwise prints what is wrong and fails.
run() {
  collective=$1 rows=$2
  shift 2
  out=$("$folder/${collective}_perf" -n 1 -w 1 "$@" 2>&1) || {
    echo "${collective}_perf $*: exit status $?"
    echo "$out"
    return 1
  }
  case $* in *"-r all"*) rows=$((rows * $(echo "$out" | grep -c '^#  Rank '))) ;; esac
  rows_seen=$((rows_seen + rows))
  echo "$out" | awk -v tool="${collective}_perf $*" -v rows="$rows" -v in_place="$in_place" '
    /^ / { n++; if ($9 != "0" || $13 != in_place) { print "wrong data: " $0; bad = 1 } }
    END { if (n != rows) { print tool ": " n + 0 " rows instead of " rows; bad = 1 }; exit bad }' || return 1
  echo "$out" | grep -q '^# Out of bounds values : 0 OK'
}
rows_seen=0
