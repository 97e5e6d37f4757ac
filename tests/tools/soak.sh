#!/bin/sh
# soak.sh TUTTI_SOAK CORRUPT: ranks that sleep most of the time, to need little CPU, cope with all kinds of faults; and
# planted faults are found.
set -u
unset TUTTI_TRACE_DIR
soak=$1 corrupt=$2
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failed=0
lacks() { echo "lacks: $1"; cat "$tmp/out"; failed=1; }

"$soak" --seconds 60 --ranks 4 --rest 4000 --maxbytes 262144 --hang 60 -J "$tmp/json" >"$tmp/out" 2>&1 ||
  { echo "the exit status is $?"; cat "$tmp/out"; failed=1; }
cat "$tmp/out"
grep -qE '^processes killed +[1-9]' "$tmp/out" || lacks 'kills'
grep -qE '^  join +[1-9]' "$tmp/out" || lacks 'joins'
grep -qE '^survivors that met deaths +[1-9]' "$tmp/out" || lacks 'survivors'
grep -q '"hangs": 0' "$tmp/json" || { echo 'no JSON'; failed=1; }

# Half of the hosts, cut off from the others, end for lack of a majority: that is as it should be.
if unshare -n true 2>/dev/null; then
  "$soak" --seconds 8 --ranks 4 --hosts 2 --faults cut --every 500 --rest 4000 --maxbytes 65536 >"$tmp/out" 2>&1 ||
    { echo "with hosts that are cut off the exit status is $?"; cat "$tmp/out"; failed=1; }
  grep -qE '^ranks cut off, without a majority +[1-9]' "$tmp/out" || lacks 'ranks without a majority'
else
  echo 'skipped: hosts that are cut off: no network namespace can be made'
fi

status=0
"$soak" --seconds 1 --faults 'kill, stop' >"$tmp/out" 2>&1 || status=$?
[ $status = 2 ] || { echo 'a misspelt fault is no error'; failed=1; }
grep -q "' stop' is none of kill," "$tmp/out" || lacks 'which fault is none'

# The user relies on getting the result after hours.
status=0
"$soak" --seconds 1 -J "$tmp/no/such/folder" >"$tmp/out" 2>&1 || status=$?
[ $status = 2 ] && grep -q 'no/such/folder: cannot be written' "$tmp/out" || lacks 'that the JSON cannot be written, at once'
if [ -w /dev/full ]; then
  "$soak" --seconds 1 --ranks 2 --faults '' --rest 4000 -J /dev/full >"$tmp/out" 2>&1 && lacks 'a failure: the JSON is lost'
  grep -q '/dev/full: cannot be written' "$tmp/out" || lacks 'that the JSON is lost'
  "$soak" --seconds 1 --ranks 2 --faults '' --rest 4000 >/dev/full 2>"$tmp/out" && lacks 'a failure: the table is lost'
  grep -q 'stdout cannot be written' "$tmp/out" || lacks 'that the table is lost'
fi

status=0
TUTTI_TRACE_DIR=$tmp/nowhere "$soak" --seconds 1 --ranks 2 --faults '' >"$tmp/out" 2>&1 || status=$?
[ $status = 1 ] && grep -q "no folder can be created in $tmp/nowhere: .*; set TUTTI_TRACE_DIR" "$tmp/out" ||
  lacks 'that there can be no traces where TUTTI_TRACE_DIR is'

# No process can be started: that is told and tried again each second, not all the time.
nobody=
[ "$(id -u)" != 0 ] || nobody='setpriv --reuid 65534 --clear-groups'
if prlimit --nproc=1 $nobody "$soak" --help >/dev/null 2>&1; then
  prlimit --nproc=1 $nobody "$soak" --seconds 3 --ranks 2 --faults '' >"$tmp/out" 2>&1 && lacks 'a failure: nothing was done'
  [ "$(grep -c 'no process can be started' "$tmp/out")" -ge 4 ] || lacks 'again that no process can be started'
  [ "$(grep -c 'no process can be started' "$tmp/out")" -lt 100 ] || { echo 'it floods stderr'; failed=1; }
else
  echo 'skipped: no process can be started: another user cannot run the program'
fi

"$soak" --transport tpc --seconds 2 --ranks 2 >"$tmp/out" 2>&1 && { echo 'that no group forms is no failure'; failed=1; }
grep -q "first group was not formed, for rank [01] of 2: .*'tpc'" "$tmp/out" || lacks 'why no group forms'
grep -q '^FAILED: nothing was done' "$tmp/out" || lacks 'that nothing was done'

LD_PRELOAD=$corrupt "$soak" --seconds 3 --ranks 3 --faults '' --maxbytes 65536 --rest 1000 >"$tmp/out" 2>&1 &&
  { echo 'wrong data are no failure'; failed=1; }
grep -qE '^wrong results +[1-9]' "$tmp/out" || lacks 'wrong data'

for seconds in 1e10 0; do
  status=0
  "$soak" --seconds $seconds >"$tmp/out" 2>&1 || status=$?
  [ $status = 2 ] && grep -q -- --seconds "$tmp/out" || lacks "that --seconds $seconds cannot be"
done

# A rank that is stopped and never continued makes the others wait: that is a hang, and the report says who waits for whom.
"$soak" --seconds 60 --ranks 2 --faults '' --hang 4 >"$tmp/out" 2>&1 &
pid=$!
children() { cat /proc/$pid/task/$pid/children; }
for _ in $(seq 200); do [ "$(children | wc -w)" = 2 ] && break; sleep 0.1; done
sleep 1
kill -STOP "$(children | cut -d' ' -f2)"
for _ in $(seq 300); do grep -q HANG "$tmp/out" && break; sleep 0.2; done
kill -TERM $pid
wait $pid && { echo 'a hang is no failure'; failed=1; }
grep -qE 'HANG: .*waits for rank' "$tmp/out" || lacks 'who waits for whom'
grep -qE '^hangs +[1-9]' "$tmp/out" || lacks 'a hang'

# A flight recorder that a rank which ended well has left is a leak.
"$soak" --seconds 3 --ranks 2 --faults '' --rest 4000 >"$tmp/out" 2>&1 &
pid=$!
folder=
for _ in $(seq 200); do
  rank=$(children | cut -d' ' -f1)
  folder=$(sed -n 's|.* \(/dev/shm/tutti-soak-[^/]*\)/.*|\1|p' "/proc/$rank/maps" 2>/dev/null | head -n 1)
  [ -n "$folder" ] && break
  sleep 0.1
done
touch "$folder/tutti-trace.$(id -u).18446744073709551615.$rank.1.1"
wait $pid && { echo 'a file that is left is no failure'; failed=1; }
grep -qE '^leaks +1\b' "$tmp/out" || lacks 'the file that is left'

# Whatever its parent ignores it hears that a rank has ended; and it comes to its end though nobody reads what it says.
timeout -s KILL 60 python3 -c 'import os, signal, sys
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
os.execv(sys.argv[1], sys.argv[1:])' "$soak" --seconds 2 --ranks 2 --faults '' --rest 4000 >"$tmp/out" 2>&1 ||
  { echo "where SIGCHLD is ignored the exit status is $?"; cat "$tmp/out"; failed=1; }
{ "$soak" --seconds 1 --ranks 2 --faults '' --rest 4000 2>"$tmp/out"; echo $? >"$tmp/status"; } | true
[ "$(cat "$tmp/status")" = 1 ] && grep -q 'stdout cannot be written: Broken pipe' "$tmp/out" ||
  { echo "without a reader the exit status is $(cat "$tmp/status")"; cat "$tmp/out"; failed=1; }

# Started by nohup it goes on when its user logs out.
trap '' HUP
"$soak" --seconds 5 --ranks 2 --faults '' --rest 4000 -J "$tmp/json" >"$tmp/out" 2>&1 &
pid=$!
trap - HUP
for _ in $(seq 200); do [ "$(children | wc -w)" = 2 ] && break; sleep 0.1; done
kill -HUP $pid
wait $pid || { echo "the exit status is $?"; cat "$tmp/out"; failed=1; }
grep -qE '"seconds": ([5-9]|[1-9][0-9])' "$tmp/json" || { echo 'a hangup that is to be ignored ends it'; cat "$tmp/json"; failed=1; }
exit $failed
