# Manx. `make help` lists the targets. They work for root and under sudo, on a fresh Debian 12 with Go.

SHELL       := /bin/bash
export PATH := $(PATH):/usr/local/go/bin:/usr/sbin:/sbin
export CGO_ENABLED := 0
# One set of compiled packages serves programs, tests and vet; see REPRODUCIBLE.
export GOFLAGS     += -trimpath

# The version has one place, the chart's appVersion: chart, manifests and documents name the image that is built.
VERSION ?= $(shell sed -n 's/^appVersion: //p' deploy/charts/manx/Chart.yaml)
COMMIT  ?= $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo unknown)
# Builds are reproducible in any folder, from a checkout and from an archive: the programs contain no path of this
# machine (-trimpath) and no state of git (-buildvcs=false; the linker gets VERSION and COMMIT).
REPRODUCIBLE := -trimpath -buildvcs=false
ARCHS   ?= amd64 arm64
SYSTEMS ?= linux darwin windows
# What programs print: a build between releases is no release. Files and images have VERSION alone.
PRINTED = $(if $(filter file,$(origin VERSION)),$(or $(TAGGED),$(VERSION)-dev+$(COMMIT)),$(VERSION))
TAGGED  = $(filter $(VERSION),$(shell git describe --exact-match --dirty --tags --match='$(VERSION)' 2>/dev/null))
LDFLAGS = -s -w -X main.version=$(PRINTED) -X main.buildVersion=$(PRINTED) -X main.commit=$(COMMIT)
GO      := go
# Debian packages that targets need. Missing ones are installed first, without starting their services.
NEED    := integration/debian-need

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## /{printf "  make %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: programs ## static binaries manxd, manx-supervise, manxctl, manx-cni, manx-cni-direct, manx-birdsock in bin/, with their modules (*.cdx.json) and licences
	@integration/supply/record --if-possible $(VERSION)

.PHONY: programs
programs: ## the binaries alone
	$(GO) build $(REPRODUCIBLE) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/manxd ./cmd/manx-supervise ./cmd/manxctl ./cmd/manx-cni ./cmd/manx-cni-direct ./cmd/manx-birdsock

# They need manxd, or the local files of a node, for few of their commands: plan, explain -f and apply need none.
.PHONY: manxctl
manxctl: ## manxctl for other systems: bin/manxctl-darwin-ARCH, bin/manxctl-windows-ARCH.exe (ARCHS="amd64 arm64")
	@for os in darwin windows; do for arch in $(ARCHS); do suffix=; test $$os = darwin || suffix=.exe; \
	GOOS=$$os GOARCH=$$arch $(GO) build $(REPRODUCIBLE) -ldflags '$(LDFLAGS)' -o bin/manxctl-$$os-$$arch$$suffix ./cmd/manxctl || exit 1; done; done

.PHONY: sbom
sbom: programs ## bin/*.cdx.json (CycloneDX) and bin/licenses, an error if they cannot be made
	integration/supply/record $(VERSION)

.PHONY: vulncheck
vulncheck: programs ## known vulnerabilities in the linked code (the script's status: 3 some, 75 database out of reach)
	@integration/supply/vulncheck

# It builds what its nodes run, once: the same flags for all share what the compiler keeps.
.PHONY: demo
demo: ## three nodes and a BIRD top-of-rack in network namespaces (KEEP=1 leaves them running; root)
	@$(NEED) iproute2 iputils-ping bird2 gobgpd
	$(GO) build $(REPRODUCIBLE) -ldflags '$(LDFLAGS)' -o bin/ ./cmd/manxd ./cmd/manxctl ./cmd/manx-cni
	$(GO) run $(REPRODUCIBLE) ./integration/demo $(if $(KEEP),--keep)

.PHONY: demo-down
demo-down: ## remove the lab of `make demo KEEP=1` (root)
	$(GO) run ./integration/demo --down

# Programs of others that tests run beside Manx: this names a wrong one in PATH before a test waits for it.
.PHONY: peers
peers:
	@$(NEED) iproute2 iputils-ping nftables bird2 gobgpd etcd-server frr openbgpd exabgp prometheus-bird-exporter pmacct iperf3 iptables openssl systemd procps gcc libc6-dev prometheus ufw ansible-core
	@$(GO) run ./integration/peers/check

.PHONY: test
test: peers build ## every test, the product's with the race detector; installs Debian packages, lists skipped tests with the reason (root)
	@integration/run-tests ./...
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target test-vm test-cluster

# Packages whose tests wait for other programs, such as kube-apiserver, are left out.
.PHONY: test-quick
test-quick: ## the tests that need no root and no other program
	$(GO) test $$($(GO) list ./bgp/... ./cmd/... ./cni/... ./controllers/... ./daemon/... ./dataplane/... ./datastore/... ./ipam/... ./plan/... ./proto/... ./retry \
	  ./integration/imports ./integration/lint | grep -v -e /datastore/kubernetes$$ -e /datastore/etcd$$)

.PHONY: conformance
conformance: build ## every cell of the NetworkPolicy tables against the kernel, in all modes (root)
	@$(NEED) iproute2 nftables
	@rc=0; for table in integration/netpol/testdata/*.json.gz; do for nodes in 1 3; do \
	$(GO) run ./integration/netpol --table $$table --nodes $$nodes --bin bin || rc=1; done; done; exit $$rc

.PHONY: mutations
mutations: ## 10,000 malformed BGP messages, some ten minutes (SEED=n repeats a run; root)
	@$(NEED) iproute2
	MANX_BGP_MUTATIONS=10000 MANX_BGP_SEED=$(SEED) $(GO) test -count=1 -v -timeout 60m -run TestMutatedMessages ./bgp/speaker

# Each for DURATION; SOAK selects one.
.PHONY: soak
soak: $(addprefix soak-,$(or $(SOAK),crashes messages datastore)) ## for an hour each: random faults of a cluster; malformed BGP messages; starts without the datastore (SOAK=crashes|messages|datastore, DURATION=8h, SEED=n; root)

# With -p 1 go test prints its output at once.
.PHONY: soak-crashes
soak-crashes:
	@$(MAKE) --no-print-directory kubernetes-programs
	MANX_SOAK=$(or $(DURATION),1h) MANX_SOAK_SEED=$(SEED) integration/kubernetes/test -run TestSoak -timeout 0 -p 1

.PHONY: soak-messages
soak-messages:
	@$(NEED) iproute2
	MANX_BGP_SOAK=$(or $(DURATION),1h) MANX_BGP_SEED=$(SEED) $(GO) test -count=1 -v -timeout 0 -run TestMutatedMessages ./bgp/speaker

.PHONY: soak-datastore
soak-datastore: programs
	@$(NEED) iproute2 iputils-ping bird2 etcd-server
	MANX_DATASTORE_AWAY=$(or $(DURATION),1h) $(GO) test -count=1 -v -timeout 0 -run TestStartsWithoutTheDatastore \
	  ./integration/e2e/failure

# A partition lasts a second: on the cluster ten thousand take an hour or two.
.PHONY: soak-ipam
soak-ipam: ## a million random assignments and releases with crashes, in memory; some ten minutes (OPERATIONS=n, SEED=n; CLUSTER=1: on three etcd servers with partitions, ten thousand)
	MANX_IPAM_OPERATIONS=$(or $(OPERATIONS),$(if $(CLUSTER),10000,1000000)) MANX_IPAM_SEED=$(SEED) \
	  $(GO) test -count=1 -v -timeout 0 -run 'TestModel$(if $(CLUSTER),OnCluster)$$' ./ipam

.PHONY: test-vm
test-vm: ## the tests that need IPIP, in a booted virtual machine (USER_MODE=1: on the newest kernel, several times faster; root)
	@USER_MODE='$(USER_MODE)' integration/vm/test

# Debian packages for clusters of real kubelets; `make kubernetes-programs` builds the other programs.
export CLUSTER_NEED := iproute2 iputils-ping nftables bird2 etcd-server containerd runc containernetworking-plugins iptables \
	conntrack busybox-static

.PHONY: kubernetes-programs
kubernetes-programs: ## the programs of a Kubernetes cluster, into a cache folder; some ten minutes, once
	@integration/kubernetes/programs/build

# The cluster runs on this machine alone.
demo-kubernetes test-k8s-e2e: ARCHS := $(shell $(GO) env GOARCH)

.PHONY: demo-kubernetes
demo-kubernetes: demo-mode programs image kubernetes-programs ## a Kubernetes cluster with real kubelets that runs on Manx (MODE=vxlan: without BGP, MODE=wireguard: encrypted, KEEP=1 leaves it running, MANIFESTS=1: without Helm; root)
	@$(NEED) $(CLUSTER_NEED) $(if $(findstring wireguard,$(MODE)),tcpdump)
	$(GO) run ./integration/kubernetes/demo $(if $(MODE),--mode '$(MODE)') $(if $(KEEP),--keep) $(if $(MANIFESTS),--manifests)

# A wrong mode is refused before minutes of builds.
.PHONY: demo-mode
demo-mode:
	@$(if $(MODE),$(GO) run ./integration/kubernetes/demo --mode '$(MODE)' --check)

.PHONY: demo-kubernetes-down
demo-kubernetes-down: ## remove the cluster of `make demo-kubernetes KEEP=1` (root)
	$(GO) run ./integration/kubernetes/demo --down

.PHONY: test-cluster
test-cluster: ## the tests on a cluster of real kubelets, with the programs of `make kubernetes-programs` (root)
	@integration/kubernetes/test

# RESUME=1 goes on with the image of the earlier run: a new image would have results of its own.
.PHONY: test-k8s-e2e
test-k8s-e2e: $(if $(RESUME),,programs image) kubernetes-programs ## Kubernetes' own tests of the network; writes the tables of docs/kubernetes-e2e.md; hours (MODE=bgp|vxlan, FAMILIES=ipv4|dual|ipv6, PARALLEL=n tests at a time; root)
	@$(NEED) $(CLUSTER_NEED) bind9-dnsutils curl netcat-openbsd wget
	@integration/kubernetes/programs/build e2e.test regression-issue-74839
	$(GO) run ./integration/kubernetes/conformance $(if $(MODE),--mode '$(MODE)') $(if $(FAMILIES),--families '$(FAMILIES)') \
	  $(if $(FOCUS),--focus '$(FOCUS)') $(if $(RESUME),--resume) $(if $(PARALLEL),--parallel $(PARALLEL))

.PHONY: interop
interop: build ## the matrix of Manx beside routers of other projects; writes the table of docs/interoperability.md (root)
	@$(NEED) iproute2 iputils-ping nftables bird2 frr openbgpd exabgp gobgpd
	$(GO) test -count=1 -v ./integration/interop -write-table

.PHONY: differences
differences: ## the differences from calico/node, shown by tests; writes the lists of docs/differences.md and decision 0003
	$(GO) test -count=1 ./integration/differences -write-differences

.PHONY: graceful
graceful: ## the cases of graceful restart, shown by tests; writes the tables of docs/graceful-restart.md (root)
	@$(NEED) iproute2 bird2 frr
	$(GO) test -count=1 -run 'TestGraceful' ./bgp/speaker -write-graceful

.PHONY: uplinks
uplinks: programs ## losses of hosts with two uplinks, case by case; writes the table of docs/bgp.md (root)
	@$(NEED) iproute2 nftables bird2
	$(GO) test -count=1 -v -run TestLosses ./integration/e2e/uplinks -write-table

.PHONY: check
check: ## gofmt, vet, staticcheck, dead code, import table, lines, parameters, exported names, other systems, generated code
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "not gofmt-ed:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(if $(filter test,$(MAKECMDGOALS)),,$(GO) test -count=1 ./integration/imports ./integration/lint) # `make test` has them
	@dead=$$($(GO) tool deadcode -test ./...); test -z "$$dead" || { echo "nothing calls:"; echo "$$dead"; exit 1; }
	@$(NEED) protobuf-compiler
	proto/generate.sh --check
	integration/deploy/crds --check
	integration/deploy/manifests --check
	$(GO) vet -C integration/deploy/tools ./...
	@$(GO) mod tidy -diff >/dev/null || { echo "go.mod is not tidy: run 'go mod tidy'"; exit 1; }

.PHONY: proto
proto: ## generate the Go code of proto/manx/v1
	@$(NEED) protobuf-compiler
	proto/generate.sh

.PHONY: image
image: build ## container images bin/image/manx-VERSION-ARCH.tar without an engine (ARCHS="amd64 arm64")
	PRINTED='$(PRINTED)' integration/deploy/image $(VERSION) $(COMMIT) $(ARCHS)

.PHONY: release
release: PRINTED = $(VERSION)
release: sbom ## all files of a release in dist/: images, chart, deb, rpm, manxctl, records, sums (VERSION must be the chart's)
	@integration/release/build '$(VERSION)' '$(COMMIT)' '$(ARCHS)' '$(SYSTEMS)'

.PHONY: same-sums
same-sums: ## compare two releases: ONE=folder OTHER=folder
	cd '$(ONE)' && sha256sum --check --quiet --strict SHA256SUMS
	cd '$(OTHER)' && sha256sum --check --quiet --strict SHA256SUMS
	diff '$(ONE)/SHA256SUMS' '$(OTHER)/SHA256SUMS'

.PHONY: version
version: ## VERSION=v1.2.3: the version that chart, manifests and documents name
	@integration/release/version '$(VERSION)'
	@integration/deploy/manifests

.PHONY: crds
crds: ## generate the CustomResourceDefinitions of deploy/crds, deploy/schemas and docs/objects.md, from the Go types
	integration/deploy/crds

.PHONY: manifests
manifests: crds ## generate deploy/manifests from the Helm chart
	integration/deploy/manifests

.PHONY: bench
bench: build ## the benchmarks of docs/performance.md, beside BIRD (root)
	@$(NEED) iproute2 bird2 iperf3 iptables wireguard-tools
	integration/run-bench
