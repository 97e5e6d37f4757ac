#!/usr/bin/env bash
# Two network namespaces are two hosts, joined by a link of 1 Gb/s, with one rank each and several TCP connections. Then
# one connection is throttled to half of its share. A benchmark: prints how much of the rate remains, which could be all
# of it, because the other connections may use what this one leaves.
#   slow_connection.sh TOOLS_DIR [CONNECTIONS]
# Exits 77 (skipped) with the reason where root, ip, tc, ss or namespaces are missing.
set -u
perf=$1/all_reduce_perf connections=${2:-4}

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
for command in tc ss; do
  command -v $command >/dev/null || skip "$command is not installed (Debian: iproute2)"
done
out=$(mktemp)
two_hosts 10.77.2
for end in "$a $va" "$b $vb"; do
  read -r ns device <<<"$end"
  tc -n "$ns" qdisc add dev "$device" root handle 1: htb default 10 || skip "tc has no htb here"
  tc -n "$ns" class add dev "$device" parent 1: classid 1:1 htb rate 1gbit burst 128k quantum 60000
  tc -n "$ns" class add dev "$device" parent 1:1 classid 1:10 htb rate 900mbit ceil 1gbit burst 128k quantum 60000
  tc -n "$ns" class add dev "$device" parent 1:1 classid 1:20 htb rate $((500 / connections))mbit \
    ceil $((500 / connections))mbit burst 32k quantum 10000
done

# The largest port from which this namespace sends a lot to the other host: that of a data connection.
busy_port() {
  ip netns exec "$a" ss -tin dst 10.77.2.2 |
    awk '/10\.77\.2\.1:/ { sub(/.*10\.77\.2\.1:/, ""); port = $1 }
         match($0, /bytes_sent:[0-9]+/) { if (substr($0, RSTART + 11, RLENGTH - 11) + 0 > 1e6) print port }' | sort -n | tail -1
}

# `throttle` = yes: limits one connection once there are some. Sets `us`, the time per operation.
run() {
  local throttle=$1 rank ns
  for rank in 0 1; do
    ns=$a
    [ $rank = 1 ] && ns=$b
    ip netns exec "$ns" env TUTTI_RANK=$rank TUTTI_NRANKS=2 TUTTI_ROOT=10.77.2.1:297$rounds TUTTI_SECRET=slow \
      TUTTI_TCP_CONNECTIONS="$connections" TUTTI_SLOTS=16 TUTTI_ALGO=direct timeout 100 \
      "$perf" -b 16M -e 16M -n 12 -w 6 -c 0 >"$out.$rank" 2>&1 &
  done
  if [ "$throttle" = yes ]; then
    for _ in $(seq 50); do port=$(busy_port); [ -n "$port" ] && break; sleep 0.1; done
    [ -n "$port" ] || fail "no connection is busy"
    tc -n "$a" filter add dev $va parent 1: protocol ip prio 1 u32 match ip sport "$port" 0xffff flowid 1:20
  fi
  wait
  [ "$throttle" = no ] || tc -n "$a" filter del dev $va parent 1:
  slow_bytes=$(tc -n "$a" -s class show dev $va classid 1:20 | awk '/Sent/ { print $2 }')
  us=$(awk '$1 == 16777216 { print $6 }' "$out.0")
  [ -n "$us" ] || { cat "$out".?; fail "no result"; }
}

for rounds in 10 11 12; do
  run no
  free=$us
  rounds=$((rounds + 10))
  run yes
  awk -v f="$free" -v s="$us" -v n="$connections" 'BEGIN {
    printf "%d connections, 16 MiB: %.1f ms; one of them at half of its share: %.1f ms; %.0f %% of the rate\n",
      n, f / 1e3, s / 1e3, 100 * f / s }'
done
# Otherwise the run proves nothing.
[ "$slow_bytes" -gt 1000000 ] || fail "the slow connection has sent no more than $slow_bytes bytes"
echo "the slow connections have sent $slow_bytes bytes"
