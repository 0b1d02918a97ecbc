#!/usr/bin/env bash
# What does berth adopt --class BE do for nginx beside a CPU hog? Three states, one after
# the other in each block, in an order that turns: alone, hog, hog as BE. Each is loaded by
# wrk for a few seconds; the figures are wrk's own. Prints CSV.
#
#   sudo examples/nginx-and-hog.sh [BLOCKS [SECONDS]] > nginx.csv
#
# Needs berth (or BERTH=path), nginx, wrk and stress-ng; leaves nothing behind.
set -euo pipefail
blocks=${1:-10} seconds=${2:-4} berth=${BERTH:-berth} port=${PORT:-18080}
dir=$(mktemp -d)
chmod 755 "$dir" # nginx's workers are another user's
hog=""
finish() {
	"$berth" release nginx-hog --keep >/dev/null 2>&1 || true
	[ -z "$hog" ] || kill "$hog" 2>/dev/null || true
	[ ! -s "$dir/pid" ] || kill "$(cat "$dir/pid")" 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT
head -c 16384 /dev/zero | tr '\0' x >"$dir/page"
cat >"$dir/conf" <<EOF
worker_processes auto; pid $dir/pid; error_log $dir/error.log;
events { worker_connections 256; }
http { access_log off; server { listen 127.0.0.1:$port; root $dir; } }
EOF
nginx -p "$dir" -c "$dir/conf"

cpus=$(nproc)
protected=no
# state puts the hog into one of the three.
state() {
	if [ "$1" != be ] && [ $protected = yes ]; then
		"$berth" release nginx-hog --keep >/dev/null
		protected=no
	fi
	if [ "$1" = alone ] && [ -n "$hog" ]; then
		kill "$hog" && wait "$hog" 2>/dev/null || true
		hog=""
	fi
	if [ "$1" != alone ] && [ -z "$hog" ]; then
		stress-ng --cpu $((4 * cpus)) --quiet &
		hog=$!
		sleep 1
	fi
	if [ "$1" = be ] && [ $protected = no ]; then
		"$berth" adopt --pid "$hog" --class BE --name nginx-hog >/dev/null
		protected=yes
	fi
}

echo block,state,requests_per_second,p50_ms,p99_ms,load_before
orders=("alone hog be" "hog be alone" "be alone hog" "alone be hog" "be hog alone" "hog alone be")
for block in $(seq "$blocks"); do
	for s in ${orders[$(((block - 1) % 6))]}; do
		state "$s"
		read -r load _ </proc/loadavg
		wrk -t1 -c16 -d"${seconds}s" --latency "http://127.0.0.1:$port/page" | awk -v head="$block,$s" -v load="$load" '
			function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t * 1000 }
			$1 == "50%" { p50 = ms($2) } $1 == "99%" { p99 = ms($2) } $1 == "Requests/sec:" { rps = $2 }
			/Non-2xx/ { print >"/dev/stderr"; bad = 1; exit 1 } END { if (!bad) printf "%s,%.0f,%.3f,%.3f,%s\n", head, rps, p50, p99, load }'
	done
done
