# Tests that boot guests with real kernels: docs/testing.md.

.PHONY: e2e e2e-fetch e2e-p99 e2e-systemd e2e-systemd-fetch e2e-kube e2e-kube-fetch

# Boots every (kernel, machine) pair, then tests the harness itself. With ARGS,
# which go to go test, only the former:
#   make e2e ARGS='-run TestGuests/kernel=6.12/machine=flat8 -guest.run TestMachine'
e2e:
	BERTH_TEST_E2E=1 go test -count=1 -p 1 -timeout 90m ./e2e $(or $(ARGS),./internal/vmtest)

# Gets QEMU, kernels and busybox from the host's own package mirrors.
e2e-fetch:
	go run ./e2e/vm fetch

# Measures what cpu.idle leaves of a neighbour's harm, by kernel, in virtual time, and has a guard
# help a tenant on 4 and on 8 CPUs: half an hour of one CPU. ARGS as above: ARGS='-update' stores the
# rows and what the guard reads, ARGS='-run TestGuardOnManyCPUs' runs the second alone.
e2e-p99:
	BERTH_TEST_E2E=1 BERTH_TEST_E2E_P99=$(or $(SCHEDULES),6) go test -v -count=1 -timeout 3h -run 'TestIdleByKernel|TestGuardOnManyCPUs' ./e2e $(ARGS)

# Boots a guest with systemd and tests what only systemd shows. ARGS as above.
e2e-systemd:
	BERTH_TEST_E2E=1 BERTH_TEST_E2E_SYSTEMD=1 go test -count=1 -timeout 90m -run TestSystemd ./e2e $(ARGS)

# Makes its root file system, as root or as a user with subordinate ids.
e2e-systemd-fetch:
	go run ./e2e/vm fetch -systemd

# A real node of Kubernetes, and containerd in a guest. ARGS as above; BERTH_KILLS=200 for long.
e2e-kube:
	cd kube && BERTH_TEST_E2E=1 go test -count=1 -timeout 60m $(or $(ARGS),-v) ./e2e/...

# Builds etcd, API server, kubelet, containerd and runc from Go modules.
e2e-kube-fetch:
	cd kube && go run ./e2e/node fetch

# The image of the node agent, without a container engine: an OCI archive of the one static
# binary, which prints its digest. make image NAME=REGISTRY/NAME:TAG OUT=DIR ARCH=arm64.
.PHONY: image
NAME ?= registry.example/berth-node:dev
image:
	cd kube && built=$$(mktemp -d) && trap "rm -r $$built" EXIT && \
	CGO_ENABLED=0 GOARCH=$(ARCH) go build -trimpath -buildvcs=false -ldflags='-s -w' -o $$built/berth-node ./cmd/berth-node && \
	go run ./image/pack -name $(NAME) -o $(abspath $(OUT))/berth-node.tar $$built/berth-node

# What a host needs to run Berth. DESTDIR is a tree to fill instead of the host.
.PHONY: install deb

prefix ?= /usr/local
BERTH = $(DESTDIR)$(prefix)/bin/berth

install:
	install -d $(dir $(BERTH)) $(DESTDIR)$(prefix)/share/man/man1 $(DESTDIR)$(prefix)/share/doc/berth $(DESTDIR)$(prefix)/lib/systemd/system
	CGO_ENABLED=0 go build -trimpath -o $(BERTH) ./cmd/berth
	install -m 644 packaging/man/*.1 $(DESTDIR)$(prefix)/share/man/man1
	sed 's|/usr/bin/berth|$(prefix)/bin/berth|' packaging/systemd/berth-agent.service > $(DESTDIR)$(prefix)/lib/systemd/system/berth-agent.service
	chmod 644 $(DESTDIR)$(prefix)/lib/systemd/system/berth-agent.service
	install -m 644 LICENSE examples/nodeconfig.yaml examples/shop.yaml docs/openapi.json docs/nodeconfig-schema.json docs/run-file-schema.json docs/*.md $(DESTDIR)$(prefix)/share/doc/berth
	install -d $(DESTDIR)$(prefix)/share/bash-completion/completions $(DESTDIR)$(prefix)/share/zsh/site-functions $(DESTDIR)$(prefix)/share/fish/vendor_completions.d
	$(BERTH) completion bash > $(DESTDIR)$(prefix)/share/bash-completion/completions/berth
	$(BERTH) completion zsh > $(DESTDIR)$(prefix)/share/zsh/site-functions/_berth
	$(BERTH) completion fish > $(DESTDIR)$(prefix)/share/fish/vendor_completions.d/berth.fish

# make deb VERSION=1.2.3 OUT=DIR; look at it with dpkg-deb -I and -c.
OUT ?= .
deb:
	VERSION=$(VERSION) packaging/deb/build $(OUT)
