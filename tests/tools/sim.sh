#!/bin/sh
# sim.sh TUTTI_SIM TOPOLOGY: the table has a winner, JSON and the trace can be read, and mistakes are reported.
set -u
sim=$1
topology=$2
# shellcheck source=tests/tools/checks.sh
. "$(dirname "$0")/checks.sh"

run "$sim" --help
check "help" 0 'Examples:'
run "$sim" all-reduce --topology "$topology" --bytes 16M
check "the winner" 0 '^\*[+ ]hierarchical'
check "the others" 0 '^ [+ ]ring '
run "$sim" all-reduce --topology "$topology" --bytes 1K --ranks 16 --algorithm tree
check "one algorithm" 0 '16 ranks on 2 hosts in 1 rack;'
for operation in all-gather reduce-scatter broadcast reduce all-to-all; do
  run "$sim" $operation --topology "$topology" --bytes 64K --ranks 12
  check "$operation" 0 '^\*'
done

run "$sim" all-reduce --topology "$topology" --bytes 1M --ranks 9 -J --trace "$tmp/trace"
check "JSON" 0 'time_us'
python3 - "$tmp/out" "$tmp/trace" <<'END' || failures=$((failures + 1))
import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
spans = json.load(open(sys.argv[2]))["traceEvents"]
times = [row["time_us"] for row in rows]
end = max(span["ts"] + span["dur"] for span in spans)
messages = sum("bytes to" in span["name"] for span in spans)
assert times == sorted(times) and len(times) > 5, times
assert abs(end - times[0]) < 0.01 + times[0] * 0.5 and end <= times[0] + 1e-6, (end, times[0])
assert messages == rows[0]["messages"], (messages, rows[0])
END

sed 's/"exceptions": \[/&{"rank": 3, "dies_us": 120},/' "$topology" >"$tmp/dies"
run "$sim" all-reduce --topology "$tmp/dies" --bytes 64M
check "a death" 0 '; rank 3 dies after 120 us'
check "who fails" 0 '63 ranks fail'
sed 's/"exceptions": \[/&{"host": 3, "dies_us": 120},/' "$topology" >"$tmp/dies"
run "$sim" all-reduce --topology "$tmp/dies"
check "a death of no rank" 2 'dies_us applies only to a rank'

run "$sim" all-reduce --topology "$tmp/absent"
check "a file that is not there" 2 'absent cannot be read: No such file'
run "$sim" all-reduce --topology "$tmp"
check "a folder" 2 'cannot be read: Is a directory'
echo '{"ranks_per_host": 2}' >"$tmp/odd"
run "$sim" all-reduce --topology "$tmp/odd"
check "a file that lacks something" 2 'odd: hosts_per_rack is missing'
run "$sim" all-reduce --topology "$topology" --ranks 65
check "too many ranks" 2 '65 ranks are more than the topology has room for'
run "$sim" all-reduce --topology "$topology" --ranks 4294967304
check "more ranks than a number has room for" 2 'give a number up to 1048576'
run "$sim" all-reduce --topology "$topology" --ranks 10000000
check "a number whose first digits would do" 2 'give a number up to 1048576'
run "$sim" all-reduce --topology "$topology" --bytes 12Q
check "a size" 2 '--bytes 12Q: must be a size'
run "$sim" all-reduce --topology "$topology" --bytes 1024T --trace "$tmp/none"
check "more than can be simulated" 2 'nothing is left to show'
for file in "$tmp/no/such/folder" "$tmp"; do
  run "$sim" all-reduce --topology "$topology" --trace "$file"
  check "a trace that cannot be written" 1 "--trace $file cannot be written"
  grep -q '^\*' "$tmp/out" && { echo "FAILED: it is found after the simulation"; failures=$((failures + 1)); }
done
run "$sim" all-reduce --topology "$topology" --algorithm rong
check "an algorithm" 2 "there is no algorithm 'rong'"
run "$sim" all-reduce --topology "$topology" --trase x
check "an option" 2 'did you mean --trace?'
run "$sim" ddp --topology "$topology" --model resnet50 --ranks 8..32 --compute-ms 90
check "training" 0 '102.2 MB of gradients in 4 buckets'
[ "$(grep -c '%' "$tmp/out")" -eq 3 ] || { echo "FAILED: three rows"; failures=$((failures + 1)); }
run "$sim" ddp --topology "$topology" --model resnet50 --ranks 8 --compute-ms 90 -J
check "training, JSON" 0 '"efficiency": 0.99'
run "$sim" ddp --topology "$topology" --model nothing --compute-ms 90
check "a model" 2 '--model nothing: no such file'
run "$sim" ddp --topology "$topology" --model resnet50
check "no time to compute" 2 'ddp needs --compute-ms'
run "$sim" all-reduce --topology "$topology" --ranks 8..16
check "a range" 2 'only ddp takes two numbers'
run "$sim" ddp --topology "$topology" --ranks 8..x
check "an odd range" 2 '--ranks 8..x: give a number'
run "$sim" ddp --topology "$topology" --model resnet50 --compute-ms 90 --trace "$tmp/none"
check "what training has no trace of" 2 '--trace does not apply to ddp'
run "$sim" all-reduce --topology "$topology" --model resnet50
check "a model of no training" 2 '--model does not apply to all-reduce'
run "$sim" juggle --topology "$topology"
check "an operation" 2 'juggle'
exit $((failures > 0))
