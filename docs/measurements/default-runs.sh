#!/bin/sh
# The runs of default-runs.md: default-runs.sh BERTH FOLDER [RUNS [ARGUMENT...]]. Every second one has
# a load from elsewhere: two processes that work for 2 s and sleep for 18 s, 10 % of two CPUs.
set -eu
berth=$1 folder=$2 runs=${3:-20}
shift "$(($# < 3 ? $# : 3))"
mkdir -p "$folder"

load() {
	while :; do
		for _ in 1 2; do
			timeout 2 sh -c 'while :; do :; done' &
		done
		sleep 20
	done
}

for i in $(seq -w "$runs"); do
	loader=
	if [ "$((${i#0} % 2))" = 0 ]; then
		load &
		loader=$!
	fi
	"$berth" lab "$@" --results "$folder/$i" >"$folder/$i.txt" 2>"$folder/$i.err" || echo "run $i failed: $?"
	if [ -n "$loader" ]; then
		kill "$loader"
		wait "$loader" 2>/dev/null || :
	fi
done
