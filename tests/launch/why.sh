#!/usr/bin/env bash
# Why a job on two hosts hangs, asked on the healthy host. The hosts are network namespaces, each with its own folder for
# traces, so that they do not see each other's ranks. The cause is a stopped rank, beside one that sees that, or alone on
# its host; or a late rank.
#   why.sh LIBTUTTI TUTTI_TRACE
# Exits 77 (skipped) with the reason where root, ip or namespaces are missing.
set -u
library=$1 tool=$2 here=$(dirname "$0")
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 2 1 10.81

# start NAME MODE RANKS PORT: the last rank causes the hang; the first two are on host 1
start() {
  local name=$1 mode=$2 n=$3 port=$4 rank host
  for rank in $(seq 0 $((n - 1))); do
    host=$((rank / 2 + 1))
    mkdir -p "$out.$name.$host"
    on $host env TUTTI_RANK=$rank TUTTI_NRANKS="$n" TUTTI_ROOT=10.81.1.1:"$port" TUTTI_SECRET=why \
      TUTTI_TRACE_DIR="$out.$name.$host" timeout -s KILL 150 python3 "$here/why.py" "$library" "$mode" $((n - 1)) \
      >"$out.$name.rank$rank" 2>&1 &
  done
}
# expect NAME PATTERN: in rank 0's own output, and in the tool's on its host
expect() {
  local name=$1 pattern=$2 said
  for _ in $(seq 1000); do grep -q '^why' "$out.$name.rank0" && break; sleep 0.1; done
  for _ in $(seq 200); do
    said=$("$tool" why --dir "$out.$name.1")
    grep -Eq "$pattern" <<<"$said" && break
    sleep 0.1
  done
  grep -E "^why.*$pattern" "$out.$name.rank0" || { cat "$out.$name".rank*; fail "$name: rank 0 does not say: $pattern"; }
  grep -E "$pattern" <<<"$said" || { cat "$out.$name".rank*; fail "$name: tutti-trace why says: $said"; }
  for _ in $(seq 200); do  # for a moment the recorder has none, while the rank writes its latest reason
    "$tool" show --dir "$out.$name.1" | grep -Eq "$pattern" && return
    sleep 0.1
  done
  fail "$name: tutti-trace show does not say it"
}

start beside stop 4 29811
start alone stop 3 29812
start late late 4 29813
expect beside 'rank 3 is stopped \(after AllReduce.*its process [0-9]+ on host .*kill -CONT [0-9]+'
expect alone 'rank 2 \(host .*pid [0-9]+\) has not answered for [0-9.]+ s, though its host is up'
expect late 'rank 3 has not called it yet: it is after AllReduce.*its process [0-9]+ on host .* is asleep outside Tutti'
for name in beside alone late; do
  awk '/^ready/ { print $2 }' "$out.$name".rank* | xargs kill -KILL
done
wait
echo "ok: why across hosts"
