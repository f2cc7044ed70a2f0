#!/bin/sh
# Compiler launcher for nvcc: runs it and keeps what it prints beside the object file (OBJECT.log), for tools/check_ptxas.py.
object=nvcc
previous=
for argument in "$@"; do
  [ "$previous" = "-o" ] && object=$argument
  previous=$argument
done
"$@" >"$object.log" 2>&1
status=$?
# ptxas -v speaks also when all is well; a build should show what is not.
if [ $status -ne 0 ]; then cat "$object.log" >&2; else grep -i -E 'warning|C75[0-9][0-9]' "$object.log" >&2; fi
exit $status
