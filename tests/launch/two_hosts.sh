#!/usr/bin/env bash
# Two network namespaces are two hosts, joined by a link of 1 Gb/s, with two ranks each in the worst order: 0 and 2 on
# host A, 1 and 3 on host B. The bytes that all-reduce sends over that link with nothing configured, compared with a flat
# ring in the launcher's order.
#   two_hosts.sh TOOLS_DIR                          test: counts the bytes on the link
#   two_hosts.sh TOOLS_DIR --bench [PERF OPTIONS]   prints the times of both, interleaved, and of other algorithms
# Exits 77 (skipped) with the reason where root, ip, tc or namespaces are missing.
set -u
tools=$1
shift
perf=$tools/all_reduce_perf

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
two_hosts 10.77.1
for end in "$a $va" "$b $vb"; do
  read -r ns device <<<"$end"
  tc -n "$ns" qdisc add dev "$device" root tbf rate 1gbit burst 128kb latency 20ms ||
    skip "the link cannot be limited to 1 Gb/s: tc has no tbf here"
done

# ranks SETTING... -- PERF OPTIONS: all four ranks of one job; the output is rank 0's.
ranks() {
  local -a settings=() pids=()
  local rank ns status=0
  while [ "$1" != -- ]; do settings+=("$1"); shift; done
  shift
  port=$((${port:-29600} + 1))
  for rank in 0 1 2 3; do
    ns=$a
    [ $((rank % 2)) = 1 ] && ns=$b
    ip netns exec "$ns" env TUTTI_RANK=$rank TUTTI_NRANKS=4 TUTTI_ROOT=10.77.1.1:$port TUTTI_SECRET=two-hosts \
      TUTTI_INIT_TIMEOUT=40 "${settings[@]}" timeout 100 "$perf" "$@" >"$out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3; do wait "${pids[$rank]}" || status=1; done
  [ $status = 0 ] || { cat "$out".?; fail "${settings[*]} $perf $*"; }
  grep -q '^# Out of bounds values : 0 OK' "$out.0" || { cat "$out".?; fail "no line says that all values are right"; }
}
sent() {  # bytes that both hosts have sent so far
  local ns device total=0
  for end in "$a $va" "$b $vb"; do
    read -r ns device <<<"$end"
    total=$((total + $(ip netns exec "$ns" cat /sys/class/net/"$device"/statistics/tx_bytes)))
  done
  echo $total
}

flat=(TUTTI_ORDER=rank TUTTI_ALGO=ring)
if [ "${1:-}" = --bench ]; then
  shift
  [ $# -gt 0 ] || set -- -b 64K -e 16M -f 16 -n 5
  for round in 1 2; do
    for setting in TUTTI_LOG=warn "${flat[*]}" TUTTI_ALGO=ring TUTTI_ALGO=tree TUTTI_ALGO=hierarchical; do
      read -ra words <<<"$setting"
      [ "$setting" = TUTTI_LOG=warn ] && setting="nothing configured"
      ranks "${words[@]}" -- "$@" -c 0
      awk -v what="$setting" '/^ *[0-9]/ { printf "%-36s %10d B %12s us\n", what, $1, $6 }' "$out.0"
    done
  done
  exit
fi

count() {  # bytes that a job with these settings sends for 8 all-reduces of 4 MiB, and for everything else
  local before
  before=$(sent)
  ranks "$@" -- -b 4M -e 4M -n 4 -w 1 -c 1
  counted=$(($(sent) - before))
}
count TUTTI_LOG=info
ours=$counted
cat "$out".?
grep -q 'order of ranks: 0 2 | 1 3' "$out.0" || fail "rank 0 does not log the order 0 2 | 1 3"
count "${flat[@]}"
echo "bytes between the hosts: $ours with nothing configured, $counted by a flat ring in the launcher's order"
[ $((ours * 3 / 2)) -le "$counted" ] || fail "a flat ring sends less than 1.5 times as much"
echo "ok: two hosts"
