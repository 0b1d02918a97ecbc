# Tests that boot guests with real kernels: docs/testing.md.

.PHONY: e2e e2e-fetch e2e-systemd e2e-systemd-fetch

# Boots every (kernel, machine) pair, then tests the harness itself. With ARGS,
# which go to go test, only the former:
#   make e2e ARGS='-run TestGuests/kernel=6.12/machine=flat8 -guest.run TestMachine'
e2e:
	BERTH_TEST_E2E=1 go test -count=1 -p 1 -timeout 30m ./e2e $(or $(ARGS),./internal/vmtest)

# Gets QEMU, kernels and busybox from the host's own package mirrors.
e2e-fetch:
	go run ./e2e/fetch

# Boots a guest with systemd and tests what only systemd shows. ARGS as above.
e2e-systemd:
	BERTH_TEST_E2E=1 BERTH_TEST_E2E_SYSTEMD=1 go test -count=1 -timeout 30m -run TestSystemd ./e2e $(ARGS)

# Makes its root file system, as root or as a user with subordinate ids.
e2e-systemd-fetch:
	go run ./e2e/fetch -systemd
