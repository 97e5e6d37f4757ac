#!/bin/sh
# fails.sh STATUS TEXT COMMAND...: the command ends with this status, and says this (a basic regular expression).
wanted=$1 text=$2
shift 2
out=$("$@" 2>&1)
status=$?
echo "$out"
[ $status -eq "$wanted" ] || { echo "exit status $status instead of $wanted"; exit 1; }
echo "$out" | grep -q -e "$text" || { echo "lacks: $text"; exit 1; }
