#!/bin/sh
# The runs of node.md: node.sh FILE. As root, after make e2e-kube-fetch, on a machine with nothing else to do; about 12
# minutes.
set -eu
exec >"$1" 2>&1
cd "$(dirname "$0")/../../kube"
date -u && uname -r && nproc && cat /proc/loadavg
BERTH_TEST_E2E=1 BERTH_ANSWERS=80s go test -count=1 -timeout 20m -v -run TestAnswers ./e2e
go test -run NONE -bench 'Synchronize|CreateContainer' -benchtime 3s -count 3 ./nri
cat /proc/loadavg
