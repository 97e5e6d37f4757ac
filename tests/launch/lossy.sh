#!/usr/bin/env bash
# Two hosts with two ranks each, network namespaces, over a cable that loses 30 % of all packets for half a minute: no
# rank may be considered lost.
#   lossy.sh VANISH
# Exits 77 (skipped) with the reason where root, ip, namespaces or packet sockets are missing.
set -u
vanish=$1
here=$(dirname "$0")
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
command -v python3 >/dev/null || skip "python3 is not installed"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 2 1 10.79
for i in 1 2; do
  ip -n "$(host 0)" link set h$i-1 nomaster
  on $i python3 "$here/lossy.py" --plain nic1 2>"$out.plain" || skip "no plain packets here: $(tail -1 "$out.plain")"
done
ip netns exec "$(host 0)" python3 "$here/lossy.py" h1-1 h2-1 30 1 2>"$out.cable" &
cable=$!
pids=()
for rank in 0 1 2 3; do
  on $((rank / 2 + 1)) env TUTTI_RANK=$rank TUTTI_NRANKS=4 TUTTI_ROOT=10.79.1.1:29790 TUTTI_SECRET=lossy \
    TUTTI_METRICS_FILE="$out.metrics.%r" TUTTI_INIT_TIMEOUT=40 timeout 150 "$vanish" stay 40 >"$out.$rank" 2>&1 &
  pids+=($!)
done
for rank in 0 1 2 3; do
  for _ in $(seq 400); do grep -q ready "$out.$rank" && break; sleep 0.1; done
  grep -q ready "$out.$rank" || { kill $cable; cat "$out".?  "$out.cable"; fail "rank $rank is not ready"; }
done
kill -USR1 $cable
sleep 30
kill -USR2 $cable
status=0
for rank in 0 1 2 3; do wait "${pids[$rank]}" || status=1; done
kill $cable
[ $status = 0 ] || { cat "$out".? "$out.cable"; fail "a bad cable was taken for a loss"; }
resent=$(awk '/^tutti_retransmits_total/ { n += $NF } END { print n + 0 }' "$out".metrics.*)
[ "$resent" -gt 0 ] || { cat "$out".metrics.*; fail "the metrics say that nothing was sent again"; }
echo "ok: a lossy cable ($resent segments of data were sent again)"
