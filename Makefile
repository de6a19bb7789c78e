# Two commands are enough to begin with: `make demo` and `make test`. Both install what they need.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

BIN := bin
# Generated bindings of go-nvml call functions that NVML deprecates.
export CGO_CFLAGS ?= -O2 -g -Wno-deprecated-declarations
# The same for all that is compiled, the embedded cluster's programs included, so that what two of them have in common
# is compiled once: net and os/user without C, as in programs without cgo, and no tables for debuggers. `make lint` vets.
TAGS := netgo,osusergo
export GOFLAGS := $(GOFLAGS) -trimpath -gcflags=all=-dwarf=false -tags=$(TAGS) -vet=off
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo v0.0.0-dev)
GO_FLAGS := -buildvcs=false
FOCUS ?= .
IMAGE ?= registry.aliquot.dev/aliquot/aliquot:$(VERSION)

.PHONY: help
help: ## say what can be made
	@awk 'BEGIN {FS = ":.*## "} /^[a-z0-9-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the plugin, the controller, the preload library and the toolkit's CDI hook into bin/
	go build $(GO_FLAGS) -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/aliquot-kubelet-plugin ./cmd/kubelet-plugin
	CGO_ENABLED=0 go build $(GO_FLAGS) -ldflags "-s -w -X main.version=$(VERSION)" -o $(BIN)/aliquot-controller ./cmd/controller
	go build $(GO_FLAGS) -ldflags "-s -w" -o $(BIN)/nvidia-cdi-hook github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-cdi-hook
	$(MAKE) --no-print-directory -s -C cdi/preload OUT=$(CURDIR)/$(BIN)/preload
	cp $(BIN)/preload/libaliquot.so $(BIN)/libaliquot.so

.PHONY: programs
programs: ## build the embedded cluster's programs: Kubernetes, containerd, runc, helm (long the first time)
	go run ./e2e/cluster/cmd/aliquot-cluster build

# Tests that only look at files or drive programs in C: the race detector would cost a second build of what they import.
SERIAL := /deployments$$|/cdi/preload
.PHONY: unit
unit: ## run the quick tests, with the race detector where Go runs more than one thing at a time
	go test -race $$(go list ./... | grep -vE '$(SERIAL)')
	go test $$(go list ./... | grep -E '$(SERIAL)')

.PHONY: e2e
e2e: programs build ## run the end-to-end tests on the embedded cluster; FOCUS=<regexp> runs a part
	go test -tags e2e,$(TAGS) -count 1 -timeout 30m -v -run '$(FOCUS)' ./e2e/specs

DURATION ?= 15m
PODS ?= 500
SEED ?= 0
# Two nodes are enough, and leave the machine to the pods. So do pauses twice as long as those of `make e2e`, by which more pods come through.
.PHONY: chaos
chaos: programs build ## let pods with shares come and go while everything is killed at random, for DURATION (15m) and until there were PODS (500); SEED=<number> repeats a run's choices
	go test -tags e2e,$(TAGS) -count 1 -timeout 0 -v -run '^TestNoPodIsLostInChaos$$' ./e2e/specs \
	  -nodes h100x8-mig,t4x4-a -chaos.duration $(DURATION) -chaos.pods $(PODS) -chaos.pause 40s -chaos.seed $(SEED)

.PHONY: test
test: programs unit e2e ## run everything

.PHONY: demo
demo: programs build ## share a simulated GPU between pods on the embedded cluster, and check that each is held
	go run ./e2e/demo $(if $(KEEP),--keep)

.PHONY: bench
bench: bench-preload bench-cores bench-admission bench-node ## measure what the preload library, a prepare, the plugin and the controller cost, and how true shares are
	go test -run '^$$' -bench PrepareUnprepare -benchtime 2000x ./internal/driver

.PHONY: bench-preload
bench-preload: ## measure what the preload library adds to the calls that it wraps
	go run ./cdi/preload/bench

.PHONY: bench-cores
bench-cores: ## measure on a simulated GPU how close shares of cores come to what was granted
	go run ./cdi/preload/bench/cores

.PHONY: bench-admission
bench-admission: programs build ## measure on the embedded cluster how long the controller takes for a review, and what memory claims cost it
	go run ./cmd/controller/bench

.PHONY: bench-node
bench-node: programs build ## measure the plugin on a node with 1,000 live shares: a prepare, a restart and its memory, with a real API server
	go run ./cmd/kubelet-plugin/bench

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (30s)
	for package in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' $$package | grep '^Fuzz' || true); do \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(or $(FUZZTIME),30s) $$package; \
	  done; \
	done

.PHONY: model
model: ## compare the driver with a model of it for STEPS (100000) random steps
	go test -count 1 -timeout 2h -v -run '^TestModel$$' ./internal/driver -model.steps $(or $(STEPS),100000) $(if $(SEED),-model.seed $(SEED))

.PHONY: lint
lint: ## run the pinned linters
	go tool -modfile=tools/go.mod golangci-lint run ./...
	go tool -modfile=tools/go.mod golangci-lint run --build-tags e2e ./e2e/...

.PHONY: generate
generate: ## write what is generated from the types of api/v1alpha1: deep copies, and the definitions of kinds that the chart installs
	go tool -modfile=tools/go.mod controller-gen object crd paths=./api/v1alpha1 output:crd:dir=deployments/helm/aliquot/files

.PHONY: verify
verify: lint generate ## check that formatting, modules, generated and golden files are as they should be
	test -z "$$(gofmt -l $$(git ls-files '*.go'))"
	go mod tidy -diff
	for package in $$(git grep -l 'flag.Bool("update"' -- '*_test.go' | xargs -n 1 dirname | sort -u); do go test ./$$package -update >/dev/null; done
	git diff --exit-code

.PHONY: image
image: ## build the container image; needs docker with buildx
	docker buildx build -f deployments/docker/Dockerfile --build-arg VERSION=$(VERSION) \
	  --build-arg REVISION=$$(git rev-parse HEAD) -t $(IMAGE) --load .

.PHONY: cluster-up
cluster-up: programs build ## start the embedded cluster with a simulated GPU node and Aliquot; HARDWARE=<description>
	@go run ./e2e/cluster/cmd/aliquot-cluster up --aliquot --hardware $(or $(HARDWARE),h100x8)

.PHONY: cluster-down
cluster-down: ## stop the embedded cluster
	go run ./e2e/cluster/cmd/aliquot-cluster down

.PHONY: clean
clean: ## remove what was built here
	rm -rf $(BIN)
