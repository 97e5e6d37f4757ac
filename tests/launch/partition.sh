#!/usr/bin/env bash
# Four hosts, network namespaces, two each at one switch, and a cable between the switches that is cut silently. With
# config.majority the half with more ranks goes on, or of equal halves the one with the lowest rank; the other half ends.
#   partition.sh VANISH
# Exits 77 (skipped) with the reason where root, ip or namespaces are missing.
set -u
vanish=$1
# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
out=$(mktemp)
export TUTTI_TUNE_FILE=/dev/null
hosts 4 1 10.80
switch() { ip -n "$(host 0)" link "$@"; }
switch add far up type bridge || skip "bridges cannot be made here"
switch add cable up master net1 type veth peer name cable-far
switch set cable-far up master far
switch set h3-1 master far
switch set h4-1 master far

# halves MODE HOST_OF_RANKS WINNERS LOSERS: each a list in quotes
halves() {
  local mode=$1 rank n=0 status=0 winners=$3 losers=$4
  local -a places pids=()
  read -ra places <<<"$2"
  n=${#places[@]}
  port=$((${port:-29800} + 1))
  rm -f "$out".?  # "ready" of the previous ranks
  for rank in $(seq 0 $((n - 1))); do
    on "${places[$rank]}" env TUTTI_RANK="$rank" TUTTI_NRANKS="$n" TUTTI_ROOT=10.80.1.1:$port TUTTI_SECRET=halves \
      TUTTI_INIT_TIMEOUT=40 timeout 120 "$vanish" "$mode" 40 majority >"$out.$rank" 2>&1 &
    pids+=($!)
  done
  for rank in $(seq 0 $((n - 1))); do
    for _ in $(seq 400); do grep -q ready "$out.$rank" && break; sleep 0.1; done
    grep -q ready "$out.$rank" || { cat "$out".?; fail "rank $rank is not ready"; }
  done
  sleep 0.5
  switch set cable down
  for rank in $(seq 0 $((n - 1))); do wait "${pids[$rank]}" || status=1; done
  switch set cable up
  [ $status = 0 ] || { cat "$out".?; fail "$mode, hosts $2: a rank failed"; }
  for rank in $winners; do
    grep -q "^goes on with $(wc -w <<<"$winners") at" "$out.$rank" || { cat "$out".?; fail "rank $rank does not go on"; }
  done
  for rank in $losers; do
    grep -q '^ends: .*not a majority' "$out.$rank" || { cat "$out".?; fail "rank $rank does not end"; }
  done
  grep -h '^ends' "$out.${losers%% *}"
  rm -f "$out".?
  sleep 1
}

halves busy '1 2 3 4' '0 1' '2 3'
halves idle '1 3 2 4' '0 2' '1 3'
halves busy '1 2 3 3 4' '2 3 4' '0 1'
echo "ok: halves of a group"
