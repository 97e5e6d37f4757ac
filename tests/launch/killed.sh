#!/usr/bin/env bash
# Three hosts with two networks, a rank on each. One of a host's networks fails, and at once its rank is killed: so the
# news of that is lost where the control connections are. The others learn of it by the other network, and go on.
#   killed.sh VANISH
# Exits 77 (skipped) with the reason where root, ip, bridges or namespaces are missing.
set -u
vanish=$1
# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 3 2 10.78
show() { tail -n +1 "$out".?; }

port=29651 pids=()
for rank in 0 1 2; do
  on $((rank + 1)) env TUTTI_RANK=$rank TUTTI_NRANKS=3 TUTTI_ROOT=10.78.1.1:$port TUTTI_SECRET=killed TUTTI_INIT_TIMEOUT=40 \
    timeout 120 "$vanish" idle 30 >"$out.$rank" 2>&1 &
  pids+=($!)
done
for rank in 0 1 2; do
  for _ in $(seq 400); do grep -q ready "$out.$rank" && break; sleep 0.1; done
  grep -q ready "$out.$rank" || { show; fail "rank $rank is not ready"; }
done
pid=$(awk '/^ready/ { print $2 }' "$out.2")
ip -n "$(host 0)" link set h3-1 down
kill -KILL "$pid" || { show; fail "rank 2 cannot be killed"; }
for rank in 0 1; do
  wait "${pids[$rank]}" || { show; fail "rank $rank"; }
  grep -q '^lost 2 at' "$out.$rank" || { show; fail "rank $rank does not list rank 2"; }
  grep -q '^goes on with 2 at' "$out.$rank" || { show; fail "rank $rank does not go on"; }
done
wait "${pids[2]}"
grep -h because "$out.0"
echo "ok: a rank that is killed while a network is down"
