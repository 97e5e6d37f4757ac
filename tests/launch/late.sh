#!/usr/bin/env bash
# Which rank of a job on three hosts is late, as the ranks of each host find out while it runs. The hosts are network
# namespaces, each with its own folder for traces, so that they do not see each other's ranks.
#   late.sh LIBTUTTI TUTTI_TRACE
# Exits 77 (skipped) with the reason where root, ip or namespaces are missing.
set -u
library=$1 tool=$2 here=$(dirname "$0")
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 3 1 10.84

# Ranks 0 and 1 are on host 1, 2 and 3 on host 2, and 4, the late one, alone on host 3: the first of each asks the others.
pids=()
for rank in 0 1 2 3 4; do
  host=$(((rank + 2) / 2))
  mkdir -p "$out.$host"
  on $host env TUTTI_RANK=$rank TUTTI_NRANKS=5 TUTTI_ROOT=10.84.1.1:29821 TUTTI_SECRET=late TUTTI_TRACE_DIR="$out.$host" \
    TUTTI_LOG=info TUTTI_METRICS_FILE="$out.prom%r" timeout -s KILL 150 python3 "$here/late.py" "$library" 4 >"$out.rank$rank" 2>&1 &
  pids+=($!)
done
# Asked from outside, on a host whose ranks are in time.
asked='with the ranks of other hosts: rank 4 came last to [0-9]+ of the last'
for _ in $(seq 200); do
  said=$("$tool" late --dir "$out.1" 2>/dev/null)
  grep -Eq "$asked" <<<"$said" && break
  sleep 0.1
done
# Ranks that are stopped could not answer: they are not asked, which would change their files, and nobody waits for them.
stopped=$(find "$out.1" -name 'tutti-trace.*' | sed 's/.*tutti-trace\.//' | cut -d. -f3 | sort -u)
for pid in $stopped; do
  kill -STOP "$pid"
  for _ in $(seq 100); do grep -q '^State:[[:space:]]*T' "/proc/$pid/status" && break; sleep 0.1; done
done
sleep 0.3  # their other threads
cp -r "$out.1" "$out.before"
unknown=$("$tool" late --dir "$out.1" 2>&1)
diff -r "$out.1" "$out.before" >"$out.changed" 2>&1
changed=$?
for pid in $stopped; do kill -CONT "$pid"; done
for pid in "${pids[@]}"; do wait "$pid" || failed=yes; done
grep -E "$asked" <<<"$said" || { cat "$out".rank*; fail "tutti-trace late does not name rank 4: $said"; }
grep -q 'unknown: no rank here answers' <<<"$unknown" || fail "tutti-trace late with stopped ranks ($stopped): $unknown"
[ $changed = 0 ] || fail "tutti-trace late asks stopped ranks: $(cat "$out.changed")"
[ -z "${failed:-}" ] || { cat "$out".rank*; fail "a rank has failed"; }
for rank in 0 2 4; do
  grep -Eq 'rank 4 came last to [0-9]+ of the last [0-9]+ operations' "$out.rank$rank" || { cat "$out.rank$rank" "$out.prom$rank"; fail "rank $rank does not log who is late"; }
  late() { awk -v rank="rank=\"$2\"}" '/^tutti_late_operations_total/ && index($1, rank) { print $2 }' "$out.prom$1"; }
  for other in 0 1 2 3; do
    times=$(late $rank $other) last=$(late $rank 4)
    [ -n "$times" ] && [ -n "$last" ] && [ $((2 * times)) -lt "$last" ] ||
      { cat "$out.prom$rank"; fail "by the metrics of rank $rank, rank $other is late"; }
  done
done
grep -h '^late' "$out".rank*
echo "ok: who is late across hosts"
