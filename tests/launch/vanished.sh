#!/usr/bin/env bash
# Three hosts with two ranks each, all network namespaces. One vanishes silently: its cable is cut. The others, idle and
# busy, learn which ranks are lost and go on without them. A process that is stopped is not lost.
#   vanished.sh VANISH
# Exits 77 (skipped) with the reason where root, ip or namespaces are missing.
set -u
vanish=$1
# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 3 1 10.78
# Every host has one address that is the same everywhere, as a virtual machine's or a service processor's network has. It
# leads to the host itself, which must not answer for the one that has vanished.
for i in 1 2 3; do
  ip -n "$(host $i)" link add same0 up type veth peer name same1 && ip -n "$(host $i)" link set same1 up
  ip -n "$(host $i)" addr add 10.0.2.15/24 dev same0
done

# start MODE SECONDS: rank R on host R / 2 + 1
start() {
  local rank
  port=$((${port:-29700} + 1))
  pids=()
  rm -f "$out".?  # "ready" of the previous ranks
  for rank in 0 1 2 3 4 5; do
    on $((rank / 2 + 1)) env TUTTI_RANK=$rank TUTTI_NRANKS=6 TUTTI_ROOT=10.78.1.1:$port TUTTI_SECRET=vanished \
      TUTTI_INIT_TIMEOUT=40 timeout 120 "$vanish" "$1" "$2" >"$out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in 0 1 2 3 4 5; do
    for _ in $(seq 400); do grep -q ready "$out.$rank" && break; sleep 0.1; done
    grep -q ready "$out.$rank" || { cat "$out".?; fail "rank $rank is not ready"; }
  done
}
show() { cat "$out".?; }

for mode in idle busy; do
  start $mode 30
  sleep 1
  ip -n "$(host 0)" link set h3-1 down
  cut=$(date +%s.%N)
  for rank in 0 1 2 3; do
    wait "${pids[$rank]}" || { show; fail "$mode: rank $rank"; }
    grep -q '^lost 4 5 at' "$out.$rank" || { show; fail "$mode: rank $rank does not list ranks 4 and 5"; }
    grep -Eq 'because .*host .* has not answered for [0-9.]+ s' "$out.$rank" || { show; fail "$mode: the reason"; }
    grep -q '^goes on with 4 at' "$out.$rank" || { show; fail "$mode: rank $rank does not go on"; }
    awk -v cut="$cut" -v what="$mode: rank $rank" '
      /^lost/ { lost = $NF - cut } /^goes on/ { printf "%s: lost after %.2f s, on after %.2f s\n", what, lost, $NF - cut }
    ' "$out.$rank"
  done
  kill "${pids[4]}" "${pids[5]}" 2>/dev/null
  wait "${pids[4]}" "${pids[5]}"
  ip -n "$(host 0)" link set h3-1 up
  sleep 1
done
grep -h because "$out.0"

start stay 8
stopped=$(awk '/^ready/ { print $2 }' "$out.4")
kill -STOP "$stopped" || { show; fail "rank 4 cannot be stopped"; }
sleep 5
kill -CONT "$stopped"
for rank in 0 1 2 3 4 5; do wait "${pids[$rank]}" || { show; fail "a stopped process was taken to be lost"; }; done
echo "ok: a vanished host"
