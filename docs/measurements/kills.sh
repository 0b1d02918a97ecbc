#!/bin/sh
# The run of kills.md: kills.sh FILE. As root, after make e2e-kube-fetch; about 8 minutes.
set -eu
exec >"$1" 2>&1
cd "$(dirname "$0")/../../kube"
date -u && uname -r && nproc && cat /proc/loadavg
BERTH_TEST_E2E=1 BERTH_KILLS=200 go test -count=1 -timeout 20m -v -run TestKills ./e2e
date -u && cat /proc/loadavg
