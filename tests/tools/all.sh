#!/bin/sh
# all.sh FOLDER [RANKS]: every tool with every type, operator and root, on each of these numbers of ranks (1 to 9), as
# processes and as threads, over shared memory and TCP. Sizes: 0 bytes, one element, one element for each rank (of the
# largest type), 149 elements, and an odd number of bytes that takes several messages. Takes about half an hour.
set -u
folder=$1
numbers=${2:-1 2 3 4 5 6 7 8 9}
# shellcheck source=tests/tools/tool.sh
. "$(dirname "$0")/tool.sh"
failures=0

all_sizes() {
  collective=$1
  shift
  traits "$collective"
  if [ "$collective" = barrier ]; then
    run barrier 1 -c 5 "$@"
    return
  fi
  if [ "$collective" = all_reduce_quantized ]; then
    run "$collective" 3 -b 0 -e 20000 -f 1031 "$@" && run "$collective" 1 -b 1000000 -e 1000000 --wire f8e4m3 -o avg "$@"
    return
  fi
  # The flags are words.
  run "$collective" $((12 * 3 * ops)) -b 0 -e 1200 -f 149 -d all $op_flags $root_flags "$@" &&
    run "$collective" $((12 * ops)) -b $((8 * ranks)) -e $((8 * ranks)) -d all $op_flags $root_flags "$@" &&
    run "$collective" $ops -b 1000003 -e 1000003 -d int8 $op_flags "$@"
}

for ranks in $numbers; do
  for how in --procs -t; do
    for transport in shm tcp; do
      for name in all_gather all_reduce all_reduce_quantized alltoall alltoallv barrier broadcast gather reduce \
        reduce_scatter scatter sendrecv; do
        all_sizes $name $how "$ranks" --transport $transport || failures=$((failures + 1))
      done
      echo "$how $ranks over $transport: $rows_seen rows so far, $failures failures"
    done
  done
done
echo "done: $rows_seen rows, $failures failures"
exit $((failures > 0))
