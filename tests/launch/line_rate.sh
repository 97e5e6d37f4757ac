#!/usr/bin/env bash
# How close all-reduces between hosts come to the network's capacity: network namespaces joined by bridges, each device
# limited to a rate by tbf. A benchmark; its figures depend on CPUs only where these are slower than the network.
#   line_rate.sh TOOLS_DIR [HOSTS [RANKS [RATE...]]]
# RANKS are per host (default 1); each RATE is that of one network, in Mb/s (default one of 1000). The bound is the time
# to send the 2 (h - 1) / h of the bytes that each of h hosts must send, in frames of 1514 bytes that carry 1448. For
# other options of the perf tool: OPTIONS="-b 4M -e 4M -n 50".
# Exits 77 (skipped) with the reason where root, ip, tc or namespaces are missing.
set -u
perf=$1/all_reduce_perf n=${2:-2} ranks=${3:-1}
rates=("${@:4}")
[ ${#rates[@]} != 0 ] || rates=(1000)
read -ra options <<<"${OPTIONS:--b 1M -e 16M -f 2 -n 20 -w 3 -c 0}"

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
out=$(mktemp)
hosts "$n" ${#rates[@]} 10.84
for i in $(seq "$n"); do
  for k in $(seq ${#rates[@]}); do
    limit="tbf rate ${rates[k - 1]}mbit burst 128kb latency 50ms"
    # shellcheck disable=SC2086  # several words on purpose
    tc -n "$(host "$i")" qdisc add dev "nic$k" root $limit || skip "tc has no tbf here"
    # shellcheck disable=SC2086
    tc -n "$(host 0)" qdisc add dev "h$i-$k" root $limit
  done
done

pids=()
for rank in $(seq 0 $((n * ranks - 1))); do
  on $((rank / ranks + 1)) env TUTTI_RANK="$rank" TUTTI_NRANKS=$((n * ranks)) TUTTI_ROOT=10.84.1.1:29840 \
    TUTTI_SECRET=rate TUTTI_TUNE_FILE="${TUTTI_TUNE_FILE:-/dev/null}" timeout -s KILL 300 "$perf" "${options[@]}" >"$out.$rank" 2>&1 &
  pids+=($!)
done
status=0
for pid in "${pids[@]}"; do wait "$pid" || status=1; done
[ $status = 0 ] || { cat "$out".*; fail "a rank failed"; }
awk -v h="$n" -v mbits="$(IFS=+; echo "$((${rates[*]}))")" '
  BEGIN { printf "%12s %12s %12s %8s\n", "bytes", "us", "bound us", "ratio" }
  $1 ~ /^[0-9]+$/ && NF >= 6 {
    bound = 2 * (h - 1) / h * $1 * 1514 / 1448 * 8 / mbits
    printf "%12d %12.0f %12.0f %8.3f\n", $1, $6, bound, $6 / bound
  }' "$out.0"
