# shellcheck shell=bash
# A benchmark in the guest: links of verbs against perftest on the same two devices, by turns; medians of the rounds.
#   tools/verbs-check '. "$tests/against_perftest.sh"'
two_hosts
size=131072

# perftest TOOL OPTIONS...: the row of its table
perftest() {
  local tool=$1
  shift
  ip netns exec h1 timeout 60 "$tool" -d rxe1 -x 0 -F "$@" >"$out.server" 2>&1 &
  for _ in $(seq 50); do ip netns exec h1 ss -ltnH | grep -q 18515 && break; sleep 0.1; done
  ip netns exec h2 timeout 60 "$tool" -d rxe2 -x 0 -F "$@" 10.9.0.1 >"$out.client" 2>&1
  wait $!
  awk -v size=$((${*: -1})) '$1 == size && NF > 3' "$out.client"
}
median() { sort -n | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

for round in 1 2 3 4 5; do
  perftest ib_write_lat -n 2000 -s 64 | awk '{ print $5 }' >>"$out.lat"
  perftest ib_send_lat -n 2000 -s 64 | awk '{ print $5 }' >>"$out.send"
  perftest ib_write_bw -n 2000 -s $size | awk '{ print $4 }' >>"$out.bw"
  env CONTRACT_TEST_DIVISOR=1 "$build/tests/verbs/bench_verbs" $size >>"$out.ours"
done
cat "$out.ours"
awk -v lat="$(median <"$out.lat")" -v bw="$(median <"$out.bw")" -v send="$(median <"$out.send")" -v our_lat="$(awk '{ print $1 }' "$out.ours" | median)" \
  -v our_bw="$(awk '{ print $2 }' "$out.ours" | median)" -v size=$size 'BEGIN {
  printf "64 B: ib_write_lat %.1f us, ib_send_lat %.1f us, ours %.1f us, %.2f and %.2f times\n", lat, send, our_lat,
    our_lat / lat, our_lat / send
  printf "%d B: ib_write_bw %.1f MiB/s, ours %.1f MiB/s, %.2f times\n", size, bw, our_bw, our_bw / bw }'
