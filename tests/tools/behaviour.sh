#!/bin/sh
# behaviour.sh FOLDER: what users and scripts rely on besides the figures: exit statuses, messages, files, and that no
# process is left behind.
set -u
folder=$1
tool=$folder/all_reduce_perf
# shellcheck source=tests/tools/checks.sh
. "$(dirname "$0")/checks.sh"

run "$tool" -h
check "help" 0 'Examples:'
run "$tool" -b 64M
check "-b alone, above -e" 2 '-b 64M is more than -e 32M (the default): give a larger -e as well'
run "$tool" -e 64
check "-e alone, below -b" 2 '-b 32M (the default) is more than -e 64: give a smaller -b as well'
run "$tool" -b 1M -e 8
check "-b above -e" 2 '-b 1M is more than -e 8: swap them'
run "$tool" --proc 2
check "an option that is nearly one" 2 'there is no option --proc; did you mean --procs?'
run "$tool" --bogus
check "an option that is none" 2 'there is no option --bogus; --help lists'
run "$tool" --procs 2 -b 8 -e 8 -G 1
check "refusal" 2 'no graphs on host memory'
run "$folder/broadcast_perf" --procs 2 -b 8 -e 8 -r 5
check "root out of range" 2 'only 2 ranks'
run "$tool" -b 8 -e 4096T
check "more memory than there is" 3 'make the largest size'
run env OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1000 "$tool" -b 8 -e 8G
check "more memory than there is for all that a launcher started" 3 '1000 rank(s) need'
run "$tool" --procs 2 -b 8 -e 8 --algo rong
check "an algorithm that does not exist" 2 'all_reduce_perf: --algo rong: there is no such algorithm; choose one of: ring, '
run "$tool" --procs 2 -b 8 -e 8 --transport nosuch
check "a transport that does not exist" 3 'nosuch'
run "$tool" -b 8 -e 8
check "one rank" 0 'procs N or -t N'
run env SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 "$tool" -t 2 -b 8 -e 8
check "threads in a batch script of Slurm's" 0 '# Out of bounds values : 0 OK'
run env SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_JOB_ID=7 SLURM_STEP_ID=4294967290 TUTTI_INIT_TIMEOUT=5 "$tool" -t 2 -b 8 -e 8
check "threads in the shell of Slurm's salloc" 0 '# Out of bounds values : 0 OK'
# 4,000 stacks are 32 GB. Sanitizers need more address space than the limit for themselves.
few_addresses() { sh -c 'ulimit -v 4000000 && exec "$@"' sh "$@"; }
if few_addresses "$tool" -t 2 -b 8 -e 8 >"$tmp/none" 2>&1; then
  run few_addresses "$tool" -t 4000 -b 8 -e 8
  check "more threads than can be started" 3 '^.rank 0. -t 4000: only [0-9]* threads can be started'
else
  echo "skipped: more threads than can be started: the program does not run with so few addresses"
fi
run "$tool" --procs 2 -t 2 -b 8 -e 1M -f 16 -u 3 -R 1 -M 1 -m 2 -C 1 -S 1 -I 1 -K 2 -z 1 -a 3 -N 2 -p 1
check "many flags at once" 0 '# Out of bounds values : 0 OK'
run "$tool" --procs 2 -y 0 -b 0 -e 300K -f 7 -m 3
check "on a stream" 0 '# Out of bounds values : 0 OK'
run "$tool" --procs 2 -b 3M -e 11M -i 3M -n 2 -z 3
check "sizes of several chunks" 0 '# Out of bounds values : 0 OK'
run "$tool" --procs 2 -c 0 -b 8 -e 8
check "no check" 0 'N/A'
printf 'a 3\nb 1000\nc 0\nd 70001\n' >"$tmp/list"
run "$tool" --procs 3 --sizes-from "$tmp/list" -n 2 -d bfloat16 -o avg
check "sizes from a file" 0 ' 142008 *71004 *bfloat16 *avg *-1 '

run "$tool" --procs 2 -b 8 -e 64 -f 2 -J "$tmp/json"
check "json run" 0 '# Out of bounds'
for key in '"version": 1' '"minimum_bytes": 8' '"out_of_place"' '"nwrong": 0' '"average_bus_bandwidth"'; do
  cp "$tmp/json" "$tmp/out"
  check "json has $key" 0 "$key"
done
"$tool" -b 8 -e 8 -J - >"$tmp/out" 2>"$tmp/err"
status=$?
check "json on stdout" 0 '^{'

# Only rank 1 has no room for its buffers. With sanitizers the program could not even start.
if (ulimit -v 900000; "$tool" -h >"$tmp/out" 2>&1); then
  port=$((20000 + $$ % 20000))
  for rank in 0 1; do
    (most=8
    [ $rank = 1 ] && most=1G && ulimit -v 900000
    TUTTI_RANK=$rank TUTTI_NRANKS=2 TUTTI_ROOT=127.0.0.1:$port TUTTI_SECRET=room \
      "$tool" -b 8 -e $most -f 2 -n 1 -J "$tmp/json.$rank" >"$tmp/out.$rank" 2>&1) &
  done
  wait
  cat "$tmp/json.0" "$tmp/out.1" >"$tmp/out"
  status=0
  check "why another rank has failed" 0 'no memory for a buffer'
  check "that it has, in the JSON" 0 'another rank has failed'
else
  echo "skipped: no room for buffers: the program does not start with so few addresses"
fi

if [ -w /dev/full ]; then
  "$tool" --procs 2 -b 8 -e 8 >/dev/full 2>"$tmp/out"
  status=$?
  check "table to a full disk" 3 'cannot be written'
  "$tool" -t 2 -b 8 -e 8 -J /dev/full >"$tmp/out" 2>&1
  status=$?
  check "json to a full disk" 3 'cannot be written'
fi
"$tool" --procs 2 -b 8 -e 8 2>"$tmp/out" >&-
status=$?
check "closed stdout" 3 'stdout is closed'
{
  "$tool" --procs 2 -b 8 -e 8 -N 0 2>"$tmp/out"
  echo $? >"$tmp/status"
} | head -n 3 >"$tmp/head"
status=$(cat "$tmp/status")
check "a reader that goes away" 3 'cannot be written'

# Starts three processes that never end, and waits until their table has begun.
start_endless() {
  rm -f "$tmp/table"
  "$tool" --procs 3 -b 64K -e 64K -N 0 "$@" >"$tmp/table" 2>"$tmp/out" &
  pid=$!
  until grep -q float "$tmp/table" 2>"$tmp/none"; do
    kill -0 $pid || break
    sleep 0.05
  done
  children=$(awk '/Rank/ { print $7 }' "$tmp/table")
}
# A zombie has ended; its new parent just has not reaped it.
runs() { kill -0 "$1" 2>"$tmp/none" && ! grep -q '^State:[[:space:]]*Z' "/proc/$1/status" 2>"$tmp/none"; }
all_gone() {
  for child in $children; do
    runs "$child" && echo "FAILED $1: process $child is left" && failures=$((failures + 1))
  done
}

start_endless -J "$tmp/kept.json"
until grep -q '"size"' "$tmp/kept.json"; do
  kill -0 $pid || break
  sleep 0.05
done
kill -TERM $pid
wait $pid
status=$?
check "terminated" 143 ''
all_gone "terminated"
python3 -c 'import json, sys; d = json.load(open(sys.argv[1])); sys.exit(not (d["results"] and d["errors"]))' "$tmp/kept.json"
status=$?
check "terminated with -J: what was measured until then is there" 0 ''

# As nohup starts it. Of two pending signals the hangup would come first.
trap '' HUP
start_endless
trap - HUP
kill -HUP $pid
kill -TERM $pid
wait $pid
status=$?
check "a hangup that is to be ignored" 143 ''
all_gone "a hangup that is to be ignored"

start_endless
kill -KILL "$(echo "$children" | sed -n 2p)"
wait $pid
status=$?
check "a rank that is killed" 3 'rank 1 (pid [0-9]*) was killed by signal 9'
check "the others name it" 3 '\[rank 0\].*rank 1'
all_gone "a rank that is killed"

# With a parent that ignores SIGCHLD.
run timeout 60 python3 -c 'import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])' "$tool" --procs 2 -b 8 -e 8
check "children that nobody wants to hear of" 0 '# Out of bounds values : 0 OK'

start_endless --grace 1
kill -STOP "$(echo "$children" | sed -n 3p)"
# Not SEGV, which sanitizers turn into an exit.
kill -ABRT "$(echo "$children" | sed -n 2p)"
wait $pid
status=$?
check "a rank that does not end" 3 'rank 2 (pid [0-9]*) did not end within 1 s'
all_gone "a rank that does not end"

start_endless
kill -KILL $pid
wait $pid 2>"$tmp/none"
for try in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do
  alive=0
  for child in $children; do runs "$child" && alive=1; done
  [ $alive -eq 0 ] && break
  sleep 0.25
done
all_gone "a launcher that is killed, after $try tries"
echo "done: $failures failures"
exit $((failures > 0))
