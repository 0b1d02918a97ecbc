#!/bin/sh
# The runs of lab-awake.md: lab-awake.sh BERTH FOLDER [PAIRS]. The second run of each pair has
# idle CPUs kept awake.
set -eu
berth=$1 folder=$2 pairs=${3:-3}
mkdir -p "$folder"

for i in $(seq "$pairs"); do
	for how in asleep awake; do
		holder=
		if [ $how = awake ]; then
			# The request lasts as long as the file is open; its value is a 32-bit number.
			(exec 3>/dev/cpu_dma_latency && printf '\0\0\0\0' >&3 && exec sleep 600) &
			holder=$!
		fi
		"$berth" lab --results "$folder/$i-$how" >"$folder/$i-$how.txt" 2>"$folder/$i-$how.err" || echo "$i $how failed: $?"
		[ -z "$holder" ] || kill "$holder"
	done
done
