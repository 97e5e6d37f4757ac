#!/usr/bin/env bash
# Two network namespaces are two hosts, joined by a link of RATE, with one rank of ddp_train each. A benchmark: steps
# whose gradients are sent during the backward pass, alternating with steps that send them after it.
#   overlap.sh TOOLS_DIR [TURNS [RATE]]
# RATE is tc's, 1gbit if not given.
# Exits 77 (skipped) with the reason where root, ip, tc, namespaces or ddp_train are missing.
set -u
train=$1/ddp_train/ddp_train turns=${2:-3} rate=${3:-1gbit}

# shellcheck source=tests/launch/hosts.sh
. "$(dirname "$0")/hosts.sh"
command -v tc >/dev/null || skip "tc is not installed (Debian: iproute2)"
[ -x "$train" ] || skip "$train was not built (it takes Eigen)"
out=$(mktemp)
two_hosts 10.77.3
for end in "$a $va" "$b $vb"; do
  read -r ns device <<<"$end"
  tc -n "$ns" qdisc add dev "$device" root tbf rate "$rate" burst 128k latency 50ms || skip "tc has no tbf here"
done

# run PORT OPTIONS...: sets `ms` (per step) and `hidden` (per cent of the communication behind the backward pass).
run() {
  local port=$1 rank ns
  shift
  for rank in 0 1; do
    ns=$a
    [ $rank = 1 ] && ns=$b
    ip netns exec "$ns" env TUTTI_RANK=$rank TUTTI_NRANKS=2 TUTTI_ROOT="10.77.3.1:$port" TUTTI_SECRET=overlap timeout 100 \
      "$train" --procs 0 --steps 15 --batch 512 --hidden 1024 --layers 3 --bucket 1M --json "$out.$rank.json" "$@" \
      >"$out.$rank" 2>&1 &
  done
  wait
  read -r ms hidden < <(python3 - "$out.0.json" <<'PYTHON'
import json, sys
figures = json.load(open(sys.argv[1]))
print(1e3 * figures["step_seconds"], figures["overlap_percent"])
PYTHON
  )
  [ -n "$ms" ] || { cat "$out".?; fail "no result"; }
}

for turn in $(seq "$turns"); do
  run $((29700 + 2 * turn))
  with=$ms behind=$hidden
  run $((29701 + 2 * turn)) --no-overlap
  echo "$with $behind $ms" >>"$out.all"
done
python3 - "$out.all" <<'PYTHON'
import statistics, sys
columns = list(zip(*(map(float, line.split()) for line in open(sys.argv[1]))))
for name, column in zip(("with overlap, ms a step", "communication that it hides, %", "without overlap, ms a step"), columns):
    print(f"{name:>30}: median {statistics.median(column):.1f} of {' '.join(f'{value:.0f}' for value in column)}")
PYTHON
