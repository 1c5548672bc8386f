#!/usr/bin/env bash
# Fuzzes every fuzz target of every module, one after the other, each for the time that is
# given: tools/fuzz.sh 30s. The first that fails ends it. What made it fail is below
# testdata/fuzz of its package then.
set -euo pipefail
cd "$(dirname "$0")/.."
time=$1
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# Go before 1.27 may say this of a target in which nothing has failed, when its time is
# over: https://go.dev/issue/75804.
time_is_over() {
	grep -qx '    context deadline exceeded' "$log" && ! grep -q 'Failing input written to' "$log" &&
		echo "(not a failure: https://go.dev/issue/75804)"
}

targets=$(grep -rEo --include='*_test.go' '^func Fuzz[A-Za-z0-9_]+' . | sed 's|/[^/]*:func | |' | sort)
while read -r package target; do
	echo "$package $target"
	(cd "$package" && ${GO:-go} test -run '^$' -fuzz "^$target\$" -fuzztime "$time" .) </dev/null 2>&1 | tee "$log" || time_is_over
done <<<"$targets"
