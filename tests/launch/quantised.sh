#!/usr/bin/env bash
# quantised.sh PROGRAM [HOSTS [BYTES...]]: quantised sums between hosts at 1 Gb/s send at most .27 of the bytes that sums of
# floats send. The speed-up that it prints, too, is a benchmark, not a test.
# Exits 77 (skipped) with the reason where root, ip, tc or namespaces are missing.
set -u
program=$1 n=${2:-2} here=$(dirname "$0")
shift; [ $# = 0 ] || shift
sizes=("$@")
[ ${#sizes[@]} != 0 ] || sizes=(1048576 4194304)
# shellcheck source=tests/launch/hosts.sh
. "$here/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts "$n" 1 10.83
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
for i in $(seq "$n"); do
  tc -n "$(host "$i")" qdisc add dev nic1 root tbf rate 1gbit burst 128kb latency 20ms || skip "tc has no tbf here"
  tc -n "$(host 0)" qdisc add dev "h$i-1" root tbf rate 1gbit burst 128kb latency 20ms
done
pids=()
for i in $(seq "$n"); do
  on "$i" env TUTTI_RANK=$((i - 1)) TUTTI_NRANKS="$n" TUTTI_ROOT=10.83.1.1:29830 TUTTI_SECRET=bytes \
    timeout -s KILL 120 "$program" nic1 .27 "${sizes[@]}" >"$out.$i" 2>&1 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
cat "$out".*
[ $status = 0 ] || fail "quantised sums sent more than .27 of the bytes, or a rank failed"
echo "ok: quantised sums"
