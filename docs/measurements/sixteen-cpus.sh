#!/bin/sh
# The runs of sixteen-cpus.md: sixteen-cpus.sh BERTH FOLDER. Nine minutes and a half; root.
set -eu
berth=$1 folder=$2
mkdir -p "$folder"
run() {
	name=$1 limit=$2
	shift 2
	timeout --signal=INT --kill-after=20 "$limit" "$berth" "$@" >"$folder/$name.txt" 2>"$folder/$name.err" ||
		echo "$name failed: $?"
}
run doctor 20 doctor
run isolation 140 lab --results "$folder/isolation"
run limits 230 lab run limits --for 3m30s --results "$folder/limits"
run cache 75 lab run cache --results "$folder/cache"
run pinning 125 lab run pinning --for 1m30s --results "$folder/pinning"
