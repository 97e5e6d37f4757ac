#!/bin/sh
# The public headers compile alone, as strict C99 and as every C++ from 11 to 20: headers.sh INCLUDE_DIR CC... -- CXX...
include=$1
shift
cc='' cxx=''
while [ "$1" != -- ]; do cc="$cc $1"; shift; done
shift
cxx=$*
failed=0

try() {
  printf '#include <tutti/%s>\n' "$header" |
    $1 -I"$include" -Wall -Wextra -pedantic -Werror -fsyntax-only -x "$2" "-std=$3" - && return
  echo "$header does not compile as $3"
  failed=1
}

for path in "$include"/tutti/*.h; do
  header=${path##*/}
  [ -f "$path" ] || exit 1
  try "$cc" c c99
  for year in 11 14 17 20; do try "$cxx" c++ c++$year; done
done
exit $failed
