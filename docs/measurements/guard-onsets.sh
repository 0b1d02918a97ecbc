#!/usr/bin/env bash
# How long from a neighbour's first run to the guard's remedy in force? One line per onset:
# the guard starts with its defaults and learns, stress-ng starts in a best-effort group beside
# nginx, and cpu.idle of that group is polled every 2 ms.
#
#   sudo BERTH=./berth docs/measurements/guard-onsets.sh [ONSETS] > onsets.csv
#
# Prints onset,reaction_ms,first_finding_ms,wrong: reaction_ms is empty if there was none in 5 s; wrong counts
# actions on another group, or before the onset. Needs the v1 cpu controller at /sys/fs/cgroup/cpu.
set -euo pipefail
onsets=${1:-24} berth=${BERTH:-berth} port=${PORT:-18090}
top=berth-onsets-$$ cpu=/sys/fs/cgroup/cpu dir=$(mktemp -d)
guard="" load=""
trees="cpu cpuset cpuacct memory blkio" # in which berth run makes its groups
cp_set() {
	for f in cpuset.cpus cpuset.mems; do cat "/sys/fs/cgroup/cpuset/$f" >"/sys/fs/cgroup/cpuset/$1/$f"; done
}
finish() {
	for pid in $guard $load; do kill "$pid" 2>/dev/null || true; done
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
# in GROUP COMMAND runs a command in a group.
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
(in_group tool wrk -t1 -c8 -d3600s "http://127.0.0.1:$port/page") >/dev/null &
load=$!
echo onset,reaction_ms,first_finding_ms,wrong
for n in $(seq "$onsets"); do
	(in_group tool "$berth" guard --state "$dir/state" --mode enforce --probe eager -o json --sensitive "$top/web" --best-effort "$top/batch") >"$dir/told" 2>"$dir/said" &
	guard=$!
	sleep "$(awk -v r=$RANDOM 'BEGIN { printf "%.3f", 8 + r / 32768 }')"
	python3 - "$n" "$top" "$dir/told" "$trees" <<'PY'
import json, signal, subprocess, sys, time
from datetime import datetime
n, top, told, trees = sys.argv[1:]
group = "/sys/fs/cgroup/%s/" + top + "/batch/"
def read(tree, name):
    with open(group % tree + name) as f:
        return f.read().strip()
join = "; ".join("echo $$ >" + group % t + "cgroup.procs" for t in trees.split())
used, reaction, onset = int(read("cpuacct", "cpuacct.usage")), None, None
hog = subprocess.Popen(["bash", "-c", join + "; exec stress-ng --cpu 4 --quiet"])
deadline = time.time() + 8
while time.time() < deadline:
    now = time.time()
    # The onset: stress-ng has had the CPU for more than it needs to fork its workers.
    if onset is None and int(read("cpuacct", "cpuacct.usage")) - used > 20e6:
        onset, deadline = now, now + 5
    if read("cpu", "cpu.idle") == "1":
        reaction = now - (onset or now)
        break
    time.sleep(0.002)
time.sleep(0.3)
hog.send_signal(signal.SIGTERM)
hog.wait()
found, wrong = "", 0
for line in open(told):
    try:
        e = json.loads(line)
    except ValueError:
        continue
    at = datetime.fromisoformat(e["time"].replace("Z", "+00:00")).timestamp()
    f, a = e.get("finding"), e.get("event")
    if f and onset and at >= onset and f.get("suspect") == top + "/batch" and found == "":
        found = "%.0f" % (1000 * (at - onset))
    if a and a.get("outcome") == "applied" and (onset is None or at < onset or a["action"]["group"] != top + "/batch"):
        wrong += 1
print("%s,%s,%s,%d" % (n, "" if reaction is None else "%.0f" % (1000 * reaction), found, wrong), flush=True)
PY
	kill -INT "$guard"; wait "$guard" || true
	guard=""
	sleep 0.5
done
