#!/usr/bin/env bash
# What does somebody get who has a slow nginx, a busy host without systemd and the first
# quick-start? Types the commands of that page that are for such a host, in their order, and
# says at the end what came of them, read from the kernel where it can be.
#
#   sudo BERTH=./berth docs/measurements/first-contact.sh > 1.txt
#
# Prints each command with the seconds since the first one and its output, then lines of
# PART,SECONDS,ANSWER:
#   named     diagnose says that nginx waits because of stress-ng-cpu, or only that this one
#             takes CPUs while nginx waits
#   proposed  it says how to have that yield, with the right process
#   in force  each process of the hog is in a group that is idle beside the others of the host
#   before, after  requests per second and p99, as berth lab probe prints them
#   back      control groups, affinity, policy and nice of all processes of hog and nginx are as
#             before
#
# nginx has users (wrk) all the time; it, they and the hog are in sessions of their own, as on a
# host where they have nothing to do with each other (autogroup). Nothing is read and corrected
# on the way. Needs nginx, wrk, stress-ng and the v1 cpu controller at /sys/fs/cgroup/cpu; leaves
# nothing behind.
set -euo pipefail
page=$(dirname "$0")/../quickstart-slow-service.md program=$(realpath "${BERTH:-$(command -v berth)}")
for name in nginx stress-ng wrk; do
	if pgrep -x "$name" >/dev/null; then
		echo "$name runs here already" >&2
		exit 1
	fi
done
dir=$(mktemp -d)
chmod 755 "$dir" # nginx's workers are another user's
hog="" users=""
finish() {
	"$program" release hog --keep >/dev/null 2>&1 || true
	for pid in $hog $users; do kill "$pid" 2>/dev/null || true; done
	[ ! -s "$dir/pid" ] || kill "$(cat "$dir/pid")" 2>/dev/null || true
	rm -rf "$dir"
}
trap finish EXIT
head -c 16384 /dev/zero | tr '\0' x >"$dir/index.html"
cat >"$dir/conf" <<CONF
worker_processes auto; pid $dir/pid; error_log $dir/error.log;
events { worker_connections 256; }
http { access_log off; server { listen 127.0.0.1:80; root $dir; } }
CONF
nginx -p "$dir" -c "$dir/conf"
setsid wrk -t1 -c4 -d5m http://127.0.0.1/ >"$dir/users" 2>&1 &
users=$!
setsid stress-ng --cpu $((4 * $(nproc))) --quiet &
hog=$!
sleep 5

# state is what is to be as it was, of all processes of hog and nginx.
state() {
	for pid in $(pgrep 'stress-ng|nginx' | sort -n); do
		echo "$pid $(tr '\n' ' ' <"/proc/$pid/cgroup")"
		awk -v pid="$pid" '/_allowed_list/ { print pid, $0 }' "/proc/$pid/status"
		sed 's/.*) //' "/proc/$pid/stat" | awk -v pid="$pid" '{ print pid, "nice", $17, "policy", $39 }'
	done
	find /sys/fs/cgroup -maxdepth 2 -type d -name 'berth*'
}
# idle says whether a process is in a group that is idle itself or below one that is.
idle() {
	local group
	group=$(sed -n 's/^[0-9]*:\([^:]*,\)*cpu\(,[^:]*\)*://p' "/proc/$1/cgroup")
	while [ "$group" != / ] && [ -n "$group" ]; do
		[ "$(cat "/sys/fs/cgroup/cpu$group/cpu.idle")" != 1 ] || return 0
		group=$(dirname "$group")
	done
	return 1
}
# yielding says how many processes of the hog are idle, of how many.
yielding() {
	local n=0 all=0 pid
	for pid in $(pgrep stress-ng); do
		all=$((all + 1))
		if idle "$pid"; then n=$((n + 1)); fi
	done
	echo "$n of $all"
}
sudo() { "$@"; }
berth() { "$program" "$@"; }

state >"$dir/before"
began=$SECONDS parts=""
part() { parts="$parts$1,$((SECONDS - began)),$2"$'\n'; }
when=before
while read -r command <&3; do
	echo "[$((SECONDS - began)) s] \$ $command"
	status=0
	eval "$command" >"$dir/out" 2>&1 || status=$?
	cat "$dir/out"
	[ "$status" = 0 ] || echo "[exit status $status]"
	case $command in
	*"berth diagnose"*)
		named=no
		if grep -q '^stress-ng-cpu takes .*; nginx waits for one' "$dir/out"; then named="who takes and who waits"; fi
		if grep -q '^process nginx waits .*, because of process stress-ng-cpu$' "$dir/out"; then named="because of it"; fi
		part named "$named"
		if grep -q "^  sudo berth adopt --pid $hog --class BE$" "$dir/out"; then part proposed yes; else part proposed no; fi
		;;
	*"berth lab probe"*)
		part $when "$(awk 'p { print $1 " and " $6 " " $7 ($8 > 0 ? " (" $8 " failed)" : ""); exit } $1 == "REQUESTS/S" { p = 1 }' "$dir/out")"
		;;
	*"berth adopt"*)
		part "in force" "$(yielding)"
		when=after
		;;
	esac
done 3< <(awk '/^<!-- try: / { tried = /container/ } tried && sub(/^    \$ /, "") { print }' "$page")
state >"$dir/after"
if diff "$dir/before" "$dir/after"; then part back yes; else part back no; fi
read -r load _ </proc/loadavg
part "load average" "$load"
printf '\n%s' "$parts"
