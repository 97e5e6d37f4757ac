# shellcheck shell=bash
# A benchmark in the guest: links of verbs against perftest on the same two devices, alternately; medians of the rounds,
# and the posts and completions per message. An emulator's times show only overheads, so they never make it fail.
#   tools/verbs-check 'rounds=5; . "$tests/against_perftest.sh"'
two_hosts
sizes=(64 4096 131072)

# clients TOOL BYTES [WATCHER...]: runs perftest's tool, its client under a watcher. It posts with the same call as Tutti.
clients() {
  local tool=$1 options=(-x 0 -F -n 1000 -s "$2")
  shift 2
  [ "$(LC_ALL=C "$tool" --help 2>&1 | grep -c use_old_post_send)" = 0 ] || options+=(--use_old_post_send)
  ip netns exec h1 timeout 60 "$tool" -d rxe1 "${options[@]}" >"$out.server" 2>&1 &
  for _ in $(seq 100); do ip netns exec h1 ss -ltnH | grep -q 18515 && break; sleep 0.05; done
  ip netns exec h2 timeout 60 "$@" env LD_PRELOAD="$build/tests/verbs/count_preload.so" "$tool" -d rxe2 "${options[@]}" 10.9.0.1 \
    >"$out.client" 2>&1
  wait $!
}
# perftest TOOL BYTES: the row of its table; the client's counts go to a file.
perftest() {
  clients "$@"
  awk -v tool="$1" -v size="$2" '/^counted/ { printf "%s %d %.2f %.2f\n", tool, size, $2 / 1000, $4 / 1000 }' "$out.client" >>"$out.counts"
  awk -v size="$2" '$1 == size && NF > 3' "$out.client"
}
# median COLUMN SIZE FILE
median() { awk -v s="$2" -v c="$1" '$1 == s { print $c }' "$3" | sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

rm -f "$out".{lat,bw,ours,counts}
for _ in $(seq "${rounds:-2}"); do
  for size in "${sizes[@]}"; do
    perftest ib_write_lat "$size" >>"$out.lat"
    perftest ib_write_bw "$size" >>"$out.bw"
  done
  env CONTRACT_TEST_DIVISOR=1 "$build/tests/verbs/bench_verbs" "${sizes[@]}" >>"$out.ours"
done
echo "   bytes | ib_write_lat us   ours ratio (<= 1.3) | ib_write_bw MiB/s     ours ratio (>= 0.9) | writes and completions a message: ib_write_bw, ours"
for size in "${sizes[@]}"; do
  awk -v size="$size" -v lat="$(median 5 "$size" "$out.lat")" -v our_lat="$(median 2 "$size" "$out.ours")" \
    -v bw="$(median 4 "$size" "$out.bw")" -v our_bw="$(median 3 "$size" "$out.ours")" \
    -v counts="$(awk -v s="$size" '$1 == "ib_write_bw" && $2 == s { print $3, $4; exit }' "$out.counts")" \
    -v our_counts="$(awk -v s="$size" '$1 == s { print $4, $5; exit }' "$out.ours")" 'BEGIN {
    printf "%8d | %15.1f %6.1f %5.2f %8s | %17.1f %8.1f %5.2f %8s | %s, %s\n", size, lat, our_lat, our_lat / (lat + 1e-9),
      (our_lat <= 1.3 * lat ? "ok" : "MISSED"), bw, our_bw, our_bw / (bw + 1e-9), (our_bw >= 0.9 * bw ? "ok" : "MISSED"), counts, our_counts }'
done

# Summarises all lines of the form "send: 1 instructions, and 2 in the device's library".
instructions() { awk '/ instructions, and / { printf "%s%s %d + %d", (n++ ? ", " : ""), $1, $2, $5 }' "$1"; }
echo "instructions of a message of 64 bytes in user space, the program's + those of the device's library, single-stepped:"
for tool in ib_write_lat ib_write_bw; do
  # For bw as many messages as it has completions for at a time.
  clients $tool 64 "$build/tests/verbs/count_verbs" 500 $([ $tool = ib_write_lat ] && echo 532 || echo 600)
  echo "  $tool: $(instructions "$out.client")"
done
TUTTI_IB_HCA==rxe1 "$build/tests/verbs/count_verbs" >"$out.client" 2>&1
echo "  ours: $(instructions "$out.client"); $(head -1 "$out.client")"
