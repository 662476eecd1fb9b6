# Every target is listed by `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

TOOLS := go tool -modfile=internal/tools/go.mod
TOOLBIN := $(CURDIR)/.cache/tools
PKGS ?= ./...

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z/-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-13s %s\n", $$1, $$2}'

.PHONY: servers
servers: ## Install redis-server and postgresql with apt if they are missing (Debian, root)
	@bash hack/install-servers.sh

.PHONY: build
build: ## Build the three programs into bin/
	go build -o bin/ ./cmd/orchestrator ./cmd/worker ./cmd/dlq-replay

.PHONY: demo
demo: servers build ## Run the main job once on real servers and check every number
	@bin/orchestrator demo

.PHONY: dev
dev: servers build ## Run a whole system until Ctrl-C
	@bin/orchestrator dev

# One package more than there are processors at a time, because tests mostly wait;
# how many tests of each run at once they decide by themselves (devtest). The
# longest packages first, so that none of them is left for the end. `make check`
# vets.
LONGEST := ./internal/e2e ./worker ./internal/pipeline/... ./internal/acceptance ./internal/api
TESTS = $(if $(filter ./...,$(PKGS)),$(LONGEST)) $(PKGS)
TESTARGS = -count=1 -vet=off -p $$(($$(nproc) + 1))
GOTESTSUM := $(TOOLS) gotestsum
define run-tests
@go build -o bin/with-servers ./internal/devstack/with-servers
@mkdir -p .cache && rm -f .cache/tests.json
@code=0; bin/with-servers -- $(GOTESTSUM) --format pkgname --hide-summary skipped --jsonfile .cache/tests.json -- $(TESTARGS) $(1) $(TESTFLAGS) $(TESTS) || code=$$?; \
	if [ -s .cache/tests.json ]; then echo "The ten slowest tests:"; $(GOTESTSUM) tool slowest --num 10 --jsonfile .cache/tests.json; fi; exit $$code
endef

.PHONY: test
test: servers ## Run all tests on real Postgres and Redis; PKGS=./worker: those of a package, TESTFLAGS: more flags of go test
	$(call run-tests,-timeout 10m)

.PHONY: race
race: servers ## Run all tests under the race detector
	$(call run-tests,-race -timeout 20m)

.PHONY: nightly
nightly: servers ## Run the tests that have a long form in it (a backlog of 200,000, 50,000 dead letters, a fan of 10,000, every part of the benchmark)
	@PENSTOCK_TEST_FULL=1 PENSTOCK_TEST_BULK=50000 $(MAKE) --no-print-directory test PKGS="./client ./internal/pipeline/dispatch ./internal/e2e ./internal/bench" TESTFLAGS="-p 1 -timeout 40m -run 'Fan|Backlog|Retries|Bulk|Parts'"

.PHONY: soak-tests
soak-tests: servers ## Run the tests over and over: shuffled, beside busy loops, with one processor, across midnight, month's and year's end (SOAK_KINDS, SOAK_ROUNDS)
	@bash hack/soak-tests.sh

.PHONY: fuzz
fuzz: ## Run each fuzz target for FUZZTIME (default 20s)
	@set -e; for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' .); do \
		for t in $$(grep -oE '^func Fuzz[A-Za-z0-9_]+' $$f | sed 's/func //'); do \
			echo "$$t ($$(dirname $$f))"; go test -run '^$$' -fuzz "^$$t\$$" -fuzztime $${FUZZTIME:-20s} ./$$(dirname $$f); done; done

.PHONY: bench
bench: servers build ## Measure the programs as users run them (25 minutes); BENCH_ARGS="-only drain,latency": some parts, see docs/benchmark.md
	@go build -o bin/bench ./internal/bench
	@bin/bench $(BENCH_ARGS)

.PHONY: profile
profile: servers build ## Write CPU profiles and Postgres' statements of one part of the benchmark into profile/; PART=drain, PROFILE_ARGS: more flags
	@go build -o bin/bench ./internal/bench
	@bin/bench -only $${PART:-drain} -profile profile $(PROFILE_ARGS)

.PHONY: chaos
chaos: servers build ## Break a running system for CHAOS_DURATION (default 2m) and check that nothing is lost; CHAOS_ARGS: more flags
	@go build -o bin/chaos ./internal/chaos
	@bin/chaos -duration $${CHAOS_DURATION:-2m} -seed $${CHAOS_SEED:-0} $(CHAOS_ARGS)

.PHONY: chaos-fast
chaos-fast: servers build ## The same with CHAOS_RATE (default 2500) cheap tasks a second in full batches beside its load
	@go build -o bin/chaos ./internal/chaos
	@bin/chaos -fast $${CHAOS_RATE:-2500} -duration $${CHAOS_DURATION:-2m} -seed $${CHAOS_SEED:-0} $(CHAOS_ARGS)

.PHONY: chaos-mutants
chaos-mutants: servers ## Plant six bugs, one after the other, and demand that the chaos harness finds each (11 minutes)
	@go build -tags mutants -o bin/mutants/ ./cmd/orchestrator ./internal/chaos
	@bin/mutants/chaos -mutants -orchestrator bin/mutants/orchestrator -seed $${CHAOS_SEED:-0} $(CHAOS_ARGS)

.PHONY: model
model: ## Explore the protocol exhaustively within the bounds of docs/model.md (2 minutes, 3 GB)
	go run ./internal/model/...

.PHONY: check
check: ## gofmt, go vet, staticcheck: what one runs all day
	@out=$$(gofmt -l $$(git ls-files '*.go')); if [ -n "$$out" ]; then echo "not gofmt-ed: $$out"; exit 1; fi
	go vet ./...
	go vet -tags crashpoints ./internal/crashpoint
	go vet -tags mutants ./internal/mutant
	$(TOOLS) staticcheck ./...

.PHONY: lint
lint: check ## check, and the proto lint
	$(TOOLS) buf lint

$(TOOLBIN)/.stamp: internal/tools/go.mod
	@mkdir -p $(TOOLBIN)
	go build -modfile=internal/tools/go.mod -o $(TOOLBIN)/ google.golang.org/protobuf/cmd/protoc-gen-go connectrpc.com/connect/cmd/protoc-gen-connect-go github.com/grpc-ecosystem/grpc-gateway/v2/protoc-gen-openapiv3
	@touch $@

.PHONY: generate
generate: $(TOOLBIN)/.stamp ## Regenerate protobuf, OpenAPI, sqlc and docs/configuration.md
	PATH=$(TOOLBIN):$$PATH $(TOOLS) buf generate
	go run internal/tools/openapi/main.go
	@rm -rf protocol/penstock/v1/penstock
	$(TOOLS) sqlc generate
	go generate ./internal/config

.PHONY: verify
verify: generate ## Fail if generated files or go.mod are not up to date
	go mod tidy -diff
	@if [ -n "$$(git status --porcelain -- protocol internal/store/dbsqlc docs/configuration.md)" ]; then \
		git status --short -- protocol internal/store/dbsqlc docs/configuration.md; git diff --stat; \
		echo "generated files differ: run make generate and commit the result"; exit 1; fi
