#!/bin/sh
# The runs of guard-sixteen.md: guard-sixteen.sh BERTH FOLDER. Thirteen minutes; root.
set -eu
berth=$1 folder=$2
mkdir -p "$folder"
run() {
	name=$1 limit=$2
	shift 2
	timeout --signal=INT --kill-after=20 "$limit" "$berth" "$@" >"$folder/$name.txt" 2>"$folder/$name.err" ||
		echo "$name failed: $?"
}
for what in ${3:-doctor guard pinning isolation}; do
	case $what in
	doctor) run doctor 20 doctor ;;
	guard) run guard 570 lab guard --protocol --results "$folder/guard" ;;
	pinning) run pinning 110 lab run pinning --for 1m15s --results "$folder/pinning" ;;
	isolation) run isolation 135 lab --results "$folder/isolation" ;;
	esac
done
