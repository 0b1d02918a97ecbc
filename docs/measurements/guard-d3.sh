#!/usr/bin/env bash
# What does nginx get under berth guard beside a CPU hog and processes in no group, as a share of
# what it gets with cpu.idle set by hand? nginx and stress-ng are in sibling groups; two more
# processes that spin are in the root group, and so is wrk.
#
#   sudo BERTH=./berth docs/measurements/guard-d3.sh ARM... > d3.csv     ARM is a name with seconds: guard=180
#
# none has no guard, and hand has cpu.idle set by hand. Under guard and needed the guard enforces, with the probe eager or as
# needed. Under reads and armed cpu.idle is set by hand, and the guard observes: without the probe, or with it always.
#
# Prints arm,second,requests_per_second,p99_ms,idle: one line per 5 s of wrk, idle is cpu.idle of the hog's group at its
# end; what the guard did goes to stderr. Needs the v1 cpu controller at /sys/fs/cgroup/cpu.
set -euo pipefail
berth=${BERTH:-berth} port=${PORT:-18091}
top=berth-d3-$$ cpu=/sys/fs/cgroup/cpu dir=$(mktemp -d)
guard="" hog="" outsiders=""
chmod 755 "$dir" # nginx's workers are another user's
trees="cpu cpuset cpuacct memory blkio" # in which berth run makes its groups
cp_set() {
	for f in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$f" >"/sys/fs/cgroup/cpuset/$1/$f"; done
}
finish() {
	for pid in $guard $hog $outsiders; do kill "$pid" 2>/dev/null || true; done
	[ ! -s "$dir/pid" ] || kill "$(cat "$dir/pid")" 2>/dev/null || true
	sleep 1
	for g in web batch tool ""; do
		for t in $trees; do rmdir "/sys/fs/cgroup/$t/$top/$g" 2>/dev/null || true; done
	done
	rm -rf "$dir"
}
trap finish EXIT
for t in $trees; do
	for g in "" web batch tool; do
		mkdir "/sys/fs/cgroup/$t/$top/$g"
		[ "$t" != cpuset ] || cp_set "$top/$g"
	done
done
in_group() {
	for t in $trees; do echo "$BASHPID" >"/sys/fs/cgroup/$t/$top/$1/cgroup.procs"; done
	shift
	exec "$@"
}
head -c 16384 /dev/zero | tr '\0' x >"$dir/page"
cat >"$dir/conf" <<CONF
worker_processes auto; pid $dir/pid; error_log $dir/error.log;
events { worker_connections 256; }
http { access_log off; server { listen 127.0.0.1:$port; root $dir; } }
CONF
(in_group web nginx -p "$dir" -c "$dir/conf")
for _ in 1 2; do
	while :; do :; done &
	outsiders="$outsiders $!"
done
slice() {
	wrk -t1 -c16 -d5s --latency "http://127.0.0.1:$port/page" | awk -v head="$1,$2" '
		function ms(t) { return t ~ /us$/ ? t / 1000 : t ~ /ms$/ ? t + 0 : t * 1000 }
		/Non-2xx/ { print >"/dev/stderr"; bad = 1; exit 1 } $1 == "99%" { p99 = ms($2) } $1 == "Requests/sec:" { rps = $2 }
		END { if (!bad) printf "%s,%.0f,%.3f,", head, rps, p99 }'
	cat "$cpu/$top/batch/cpu.idle"
}
echo arm,second,requests_per_second,p99_ms,idle
for arm in "$@"; do
	name=${arm%=*} seconds=${arm#*=}
	case $name in
	guard) how="enforce --probe eager" ;;
	needed) how="enforce --probe needed" ;;
	reads) how="observe --probe never" ;;
	armed) how="observe --probe always" ;;
	*) how="" ;;
	esac
	[ -z "$how" ] || {
		# shellcheck disable=SC2086
		(in_group tool "$berth" guard --state "$dir/state" --mode $how --sensitive "$top/web" --best-effort "$top/batch") >&2 &
		guard=$!
		wrk -t1 -c16 -d8s "http://127.0.0.1:$port/page" >/dev/null # it learns
	}
	(in_group batch stress-ng --cpu 2 --quiet) &
	hog=$!
	case $name in hand | reads | armed) echo 1 >"$cpu/$top/batch/cpu.idle" ;; esac
	for at in $(seq 5 5 "$seconds"); do slice "$name" "$at"; done
	[ -z "$guard" ] || { kill -INT "$guard"; wait "$guard" || true; guard=""; }
	kill "$hog"; wait "$hog" 2>/dev/null || true
	hog=""
	echo 0 >"$cpu/$top/batch/cpu.idle"
done
