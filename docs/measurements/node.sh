#!/bin/sh
# The run of node-calls.md: node.sh FILE. As root, after make e2e-kube-fetch, on a machine with nothing else to do; about 25
# minutes.
set -eu
exec >"$1" 2>&1
cd "$(dirname "$0")/../../kube"
date -u && uname -r && nproc && cat /proc/loadavg
BERTH_TEST_E2E=1 BERTH_ANSWERS=${BERTH_ANSWERS:-17m} go test -count=1 -timeout 40m -v -run TestAnswers ./e2e
cat /proc/loadavg
