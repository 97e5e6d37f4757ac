# shellcheck shell=bash
# What tools/verbs-check runs in each of two guests at once, with $build, $tests and $here set: the guests are two hosts,
# and data between them leave a kernel. The last line is "N passed, N failed".
# shellcheck source=tests/verbs/net.sh
. "$tests/net.sh"
one_of_two

# Like job. Both guests check how much their device has sent.
crosses() {
  local packets=/sys/class/infiniband/rxe$here/ports/1/hw_counters/sent_pkts before
  before=$(cat "$packets")
  job "$@" || return 1
  note="$(($(cat "$packets") - before)) RDMA packets from host $here"
  echo "$note"
  [ $(($(cat "$packets") - before)) -gt 1000 ]
}
for ranks in 2 4; do
  check "two guests, all_reduce, $ranks ranks, 0 B to 4 MiB" crosses $ranks -- all_reduce -b 0 -e 4M -f 16 -n 3 -w 0
done
check "two guests, all_reduce, 4 ranks, registered memory" crosses 4 -- all_reduce -b 64K -e 1M -f 16 -n 3 -w 0 -R 1
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
