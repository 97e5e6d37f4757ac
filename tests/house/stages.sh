#!/usr/bin/env bash
# The stages of tools/check: what runs in parallel, its results, and the table of times. The argument is the root.
set -uo pipefail
root=$1
folder=$(mktemp -d) || exit 1
log=$folder/log stage_times=$folder/times beside_at=$folder
# shellcheck source=tools/lib/setup.sh
. "$root/tools/lib/setup.sh"
# shellcheck source=tools/lib/stages.sh
. "$root/tools/lib/stages.sh"
trap 'end_beside; rm -rf "$folder"' EXIT

wrong=0
expect() {  # name, actual, expected
  [ "$2" = "$3" ] && return
  echo "$1: '$2' instead of '$3'"
  wrong=$((wrong + 1))
}
until_there() {  # file; the limit is only for hangs
  local i
  for i in $(seq 600); do [ -e "$1" ] && return; sleep 0.1; done
  echo "there is still no $1 after a minute"
  return 1
}

# In parallel: the first continues only when the foreground has, so it was not waited for; the second comes after the first.
waits() { until_there "$folder/go" && echo "it went on"; }
follows() { [ -e "$folder/go" ] && echo "it followed" && return 3; }
begin first waits
begin second in_spare_time after first follows
sleep 0.3  # time in which the second could wrongly begin
touch "$folder/go"
await first >"$folder/output"
expect "status of the first" $? 0
expect "output of the first" "$(cat "$folder/output")" "it went on"
is_beside second || expect "what was begun" "gone" "there"
await second >"$folder/output"
expect "status of the second" $? 3
expect "output of the second" "$(cat "$folder/output")" "it followed"
is_beside second && expect "what was awaited" "there" "gone"

# A stage that still runs is ended, with all processes that it has started.
starts_another() {
  sleep 1000 &
  echo $! >"$folder/pid.new" && mv "$folder/pid.new" "$folder/pid"
  wait
}
begin endless starts_another
until_there "$folder/pid" || wrong=$((wrong + 1))
end_beside
timeout 60 tail --pid="$(cat "$folder/pid")" -f /dev/null
expect "what has been ended" $? 0

# The table.
stage "computes" python3 -c 'import time
while time.process_time() < 2.1: pass' >/dev/null
stage "waits" sleep 1.1 >/dev/null
stage "fails" false >/dev/null
expect "status of a stage that fails" $? 1
table=$(print_stages)
expect "stages in the table" "$(awk 'NF { print $1 }' <<<"$table" | xargs)" "stage computes waits fails"
cpu_of() { awk -v stage="$1" '$1 == stage { print $NF }' <<<"$table"; }
expect "CPU time of a stage that computes" "$(cpu_of computes)" 0:02
expect "CPU time of a stage that waits" "$(cpu_of waits)" 0:00
expect "seconds of a stage that waits" "$(($(awk -F '\t' '$1 == "waits" { print $3 }' "$stage_times") >= 1))" 1

[ $wrong = 0 ] && echo "ok: stages, one after the other and beside"
exit $((wrong > 0))
