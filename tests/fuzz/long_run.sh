#!/usr/bin/env bash
# long_run.sh DIR [SEED]: more than 10^7 inputs over the five targets in DIR (ninja fuzz_targets bulk_targets). For each target a guided run fills a
# corpus, then a bulk run starts from it. A line for each; exit code 1 with any finding, whose input is left in the current directory.
set -euo pipefail
dir=$(realpath "$1") seed=${2:-1}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
for row in safetensors:4000000:200000:1024 index:2500000:100000:1024 config:1700000:100000:2048 packed:1600000:50000:2048 checkpoint:250000:20000:32768; do
  IFS=: read -r target bulk guided longest <<<"$row"
  mkdir "$work/$target"
  if ! "$dir/fuzz_$target" "$work/$target" -seed="$seed" -runs="$guided" -max_len="$longest" -timeout=20 -rss_limit_mb=2048 >"$work/log" 2>&1; then
    failed=1
    tail -n 40 "$work/log"
  fi
  echo "fuzz_$target: $guided guided inputs, $(grep -oE 'cov: [0-9]+ ft: [0-9]+ corp: [0-9]+' "$work/log" | tail -n 1)"
  "$dir/bulk_$target" "$bulk" "$seed" "$longest" "$work/$target" || failed=1
done
exit $failed
