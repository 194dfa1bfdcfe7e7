# boxd: "make" prints the targets. This file is the only home of compiler flags:
# tests that build the binaries call "make build" (internal/testutil).

BIN     ?= bin
# Without a Go that will do, every goal that needs it says so and what to do.
GO      := $(or $(shell .ci/find-go 2>/dev/null),.ci/find-go)
export PATH := $(patsubst %/,%,$(dir $(GO))):$(PATH)

# boxd is pure Go. boxd-init, which has libcontainer's C stage, and the programs of boxes are linked
# statically: they run from sealed memory files, where no library can be found.
TAGS    := netgo,osusergo
# Tests compare our seccomp policy with libseccomp, which neither program links.
TESTTAGS := $(TAGS),libseccomp
# -trimpath everywhere, so that what is built for the programs need not be built again for
# lint and tests.
export GOFLAGS := $(strip $(filter-out -tags=% -trimpath,$(GOFLAGS)) -tags=$(TAGS) -trimpath)
VERSION  = $(eval VERSION := $$(shell git describe --always --dirty --tags 2>/dev/null || echo unknown))$(VERSION)
STAMP    = -X github.com/boxd/boxd/internal/version.Version=$(VERSION)
LDFLAGS_boxd      = -s -w $(STAMP) $(WITHENGINE)
LDFLAGS_boxd-init = -s -w $(STAMP) $(WITHENGINE) -extldflags "-static"

# Programs that no user starts, beside each other in one directory.
PRIVATE = boxd-init boxd-agent boxd-unpacker

# For tests: the engine of boxes that name none, other than "native". The programs must not be installed.
#   make test-root BIN=/tmp/oci ENGINE=oci PKGS=./test/native
ENGINE    ?=
WITHENGINE = $(if $(ENGINE),-X github.com/boxd/boxd/engine/spec.defaultEngine=$(ENGINE))

# Root for what needs it; the build and the build cache stay the caller's.
ROOT    := $(if $(filter-out 0,$(shell id -u)),sudo -E env "PATH=$(PATH)")

# Kernel packages are those whose tests use internal/testutil: they may need root,
# leave kernel objects behind, and so run one after the other.
KERNEL  := .ci/packages kernel
UNIT    := .ci/packages unit
# Privileged tests find the binaries here and may not skip in CI.
# FULL=1 runs the forms of tests that take minutes (testutil.Full).
TESTENV  = BOXD_BIN_DIR="$(abspath $(BIN))" $(if $(CI),BOXD_TEST_REQUIRE=1) $(FULLENV)
FULLENV  = $(if $(FULL),BOXD_TEST_FULL=1)

# How many tests of a package that call t.Parallel run at once: they wait more than they compute.
PARALLEL = -parallel 8

# Narrow any test target:  make test-root PKGS=./cgroups RUN=TestFreeze
PKGS     ?=
RUN      ?=
TESTARGS ?=
ARGS      = $(if $(RUN),-run '$(RUN)') $(TESTARGS)
FUZZTIME ?= 30s
# "make lint" runs all of vet.
GOTEST    = $(GO) test -vet=off -tags=$(TESTTAGS)
# What "make test" runs in the virtual machine: the packages that another kernel and
# cgroup v2 make a difference to, without what testutil.Long leaves out there; "make full"
# runs them all. VM_RUN narrows it, VM_TIMEOUT bounds it, in seconds.
VM_PKGS    ?= ./cgroups/... ./mounts ./netns ./rootfs ./engine/native/... ./internal/linux ./internal/sealed ./test/native ./test/conformance ./test/attack ./test/ledger ./test/crash
VM_RUN     ?=
VM_TIMEOUT ?= 3600

.DEFAULT_GOAL := help
.PHONY: help
help:
	@echo 'make run         install what is missing, build, and run a job in a box'
	@echo 'make test        install what is missing and run all tests that this machine can run'
	@echo
	@echo 'make setup       install what is missing from the distribution'
	@echo 'make build       build bin/boxd and, beside it, $(PRIVATE)'
	@echo 'make build-containerd  build bin/boxd-containerd, for boxes that containerd builds'
	@echo 'make test-unit   the tests that need no privilege, with the race detector'
	@echo 'make test-root   the privileged tests, on this machine'
	@echo 'make test-vm     the privileged tests, in a virtual machine with cgroup v2'
	@echo 'make test-packages  what packages contain, and their installation, upgrade and removal in a virtual machine with systemd'
	@echo 'make full        everything in full: the long forms of tests, the virtual machine without -short, packages'
	@echo 'make race        all tests with the race detector'
	@echo 'make compat      run programs and their own test suites on the host and in boxes, and print a table'
	@echo 'make lint        gofmt, go vet, staticcheck, shellcheck, Vagrantfile'
	@echo 'make bench       print the benchmark table'
	@echo 'make fuzz        run every fuzz target for FUZZTIME=$(FUZZTIME)'
	@echo 'make install     install programs, systemd units, manual pages and completions below DESTDIR=$(DESTDIR)/'
	@echo 'make packages    build a .deb, an .rpm and a tarball in $(PACKAGES)'
	@echo 'make clean       remove what was built'
	@echo
	@echo "PKGS, RUN and TESTARGS narrow the tests:  make test-root PKGS=./cgroups RUN=Freeze TESTARGS=-v"

.PHONY: setup setup-run
setup:
	@.ci/setup test
setup-run:
	@.ci/setup run

# A new file takes the old one's place, so that a running boxd is not disturbed.
.PHONY: build
build:
	@mkdir -p "$(BIN)"
	CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '$(LDFLAGS_boxd)' -o "$(BIN)/.boxd.new" ./cmd/boxd
	$(foreach p,$(PRIVATE),CGO_ENABLED=1 $(GO) build -buildvcs=false -ldflags '$(LDFLAGS_boxd-init)' -o "$(BIN)/.$(p).new" ./cmd/$(p) &&) true
	@for p in boxd $(PRIVATE); do mv -f "$(BIN)/.$$p.new" "$(BIN)/$$p" || exit 1; done

# A module of its own: the client of containerd brings some forty others, which neither boxd nor
# programs that embed it need.
.PHONY: build-containerd
build-containerd:
	@mkdir -p "$(BIN)"
	cd cmd/boxd-containerd && CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '$(LDFLAGS_boxd)' -o "$(abspath $(BIN))/.boxd-containerd.new" .
	@mv -f "$(BIN)/.boxd-containerd.new" "$(BIN)/boxd-containerd"

# What "boxd bench" starts: what measures and draws must not slow the start of boxd.
.PHONY: build-bench
build-bench:
	CGO_ENABLED=0 $(GO) build -buildvcs=false -ldflags '$(LDFLAGS_boxd)' -o "$(BIN)/.boxd-bench.new" ./cmd/boxd-bench
	@mv -f "$(BIN)/.boxd-bench.new" "$(BIN)/boxd-bench"

# For scripts: the values of this file.
.PHONY: print-goflags print-testtags print-version
print-goflags:
	@echo '$(GOFLAGS)'
print-testtags:
	@echo '$(TESTTAGS)'
print-version:
	@echo '$(VERSION)'

.PHONY: run
run: setup-run
	@$(MAKE) -s --no-print-directory build
	@echo 'Running a Python job in a box: 64 MiB of memory, no network, 10 seconds.'
	$(ROOT) $(BIN)/boxd run --memory 64M --timeout 10s --receipt -- /usr/bin/python3 -c "$$DEMO"

define DEMO_TEXT
import getpass, os, socket, sys
print(f"hello from Python {sys.version.split()[0]} as {getpass.getuser()}, process {os.getpid()}, host {socket.gethostname()}")
print("processes to be seen:", len([p for p in os.listdir("/proc") if p.isdigit()]))
print("interfaces:", ", ".join(name for _, name in socket.if_nameindex()))
try:
    open("/usr/bin/python3", "ab")
except OSError as e:
    print("writing to /usr:", e.strerror)
print("sum of squares:", sum(n * n for n in range(100_000)))
endef
run: export DEMO := $(DEMO_TEXT)

.PHONY: test
test: setup
	@MAKE="$(MAKE)" .ci/steps build lint test-unit test-root test-vm-short

.PHONY: full
full: setup
	@echo 'Engines that are tested, and built first where they are missing:'
	@for program in runc containerd "$$(.ci/containerd)/containerd" "$$(.ci/runsc)"; do \
		echo "  $$program: $$("$$program" --version | head -n 1)"; \
	done
	@MAKE="$(MAKE)" FULL=1 .ci/steps build lint test-unit test-root test-vm test-packages

.PHONY: test-unit
test-unit:
	CGO_ENABLED=1 $(GOTEST) -race $(ARGS) $$($(UNIT) $(PKGS))

.PHONY: test-root
test-root: build build-containerd build-bench
	$(TESTENV) $(GOTEST) -p 1 -count=1 -timeout $(if $(FULL),60m,15m) $(PARALLEL) $(if $(ROOT),-exec '$(ROOT)') $(ARGS) $$($(KERNEL) $(PKGS))

.PHONY: test-vm
test-vm: build build-containerd
	@.ci/setup vm
	$(ROOT) env $(FULLENV) test/vm/run-tests -b "$(BIN)" -t $(if $(FULL),14400,5400) $(ARGS) $$($(KERNEL) $(PKGS))

# A machine with cgroup v2 of its own has run these tests already.
.PHONY: test-vm-short
test-vm-short:
	@if grep -qw memory /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then \
		echo 'test-vm: not needed, this machine has cgroup v2 itself (make test-vm runs it all the same)'; \
	else \
		set -x; $(ROOT) test/vm/run-tests -b "$(BIN)" -t $(VM_TIMEOUT) -short $(if $(VM_RUN),-run '$(VM_RUN)') $$($(KERNEL) $(VM_PKGS)); \
	fi

.PHONY: compat
compat: build
	@.ci/setup compat
	$(TESTENV) BOXD_COMPAT=1 $(GOTEST) -count=1 -timeout 4h $(if $(ROOT),-exec '$(ROOT)') $(if $(RUN),-run 'TestCompat/($(RUN))') $(TESTARGS) ./test/compat

.PHONY: race
race: build
	CGO_ENABLED=1 $(GOTEST) -race $(ARGS) $$($(UNIT) $(PKGS))
	CGO_ENABLED=1 $(TESTENV) $(GOTEST) -race -p 1 -count=1 -timeout 30m $(if $(ROOT),-exec '$(ROOT)') $(ARGS) $$($(KERNEL) $(PKGS))

.PHONY: lint
lint:
	@bad=$$(git ls-files -z -- '*.go' | xargs -0r gofmt -l); \
		[ -z "$$bad" ] || { echo "not formatted, run gofmt -w on:"; echo "$$bad"; exit 1; }
	CGO_ENABLED=1 $(GO) vet -tags=$(TESTTAGS) ./...
	@for os in windows $(if $(FULL),darwin); do CGO_ENABLED=0 GOOS=$$os $(GO) build ./client ./engine ./engine/spec ./api/apitypes || exit 1; done
	CGO_ENABLED=1 $(GO) tool staticcheck -tags=$(TESTTAGS) ./...
	cd cmd/boxd-containerd && $(GO) vet ./...
	$(if $(FULL),cd packaging/build && $(GO) vet .)
	@if command -v shellcheck >/dev/null; then shellcheck .ci/* test/vm/boot test/vm/run-tests test/vm/with-systemd test/vm/provision test/vm/guest/* packaging/deb/p* packaging/rpm/* test/programs/testdata/*.sh; else echo 'lint: shellcheck is not installed, scripts are not checked'; fi
	@if command -v ruby >/dev/null; then ruby -c Vagrantfile >/dev/null; else echo 'lint: ruby is not installed, Vagrantfile is not checked'; fi

.PHONY: bench
bench: build build-containerd build-bench
ifeq ($(TESTARGS),)
	@mkdir -p docs/benchmarks
	@$(ROOT) $(BIN)/boxd bench --pictures docs/benchmarks >"$(BIN)/bench.md"
	@sed -i -e '/^<!-- begin/,/^<!-- end/{//!d}' -e '/^<!-- begin/r $(BIN)/bench.md' docs/benchmarks.md
else
	@$(ROOT) $(BIN)/boxd bench $(TESTARGS)
endif

.PHONY: fuzz
fuzz:
	@.ci/packages fuzz $(PKGS) | while read -r package target; do \
		echo "fuzz: $$package $$target"; \
		$(GO) test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$package" </dev/null || exit 1; \
	done

# What runs while packages are made, which may be for another architecture.
HOSTGO = env -u GOARCH $(GO)

# The contents of packages. Users and directories are made by sysusers and tmpfiles, the
# units started by the administrator: see docs/operations.md.
DESTDIR ?=
PREFIX  ?= /usr
UNITDIR ?= $(PREFIX)/lib/systemd/system
.PHONY: install
install: build build-containerd build-bench
	install -D -m 0755 "$(BIN)/boxd" "$(DESTDIR)$(PREFIX)/bin/boxd"
	install -D -m 0755 -t "$(DESTDIR)$(PREFIX)/libexec/boxd" $(PRIVATE:%="$(BIN)/%") "$(BIN)/boxd-containerd" "$(BIN)/boxd-bench"
	install -D -m 0644 -t "$(DESTDIR)$(UNITDIR)" packaging/systemd/*
	@sed -i '/^ExecStart=/s,/usr/\(bin\|libexec\)/,$(PREFIX)/\1/,g' "$(DESTDIR)$(UNITDIR)"/boxd.service "$(DESTDIR)$(UNITDIR)"/boxd-launcher.service
	@rm -rf "$(BIN)/share"
	@SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || date +%s)} \
		CGO_ENABLED=0 $(HOSTGO) run -buildvcs=false -ldflags '$(STAMP)' ./packaging/manual "$(BIN)/share"
	@cd "$(BIN)/share" && find . -type f -exec install -D -m 0644 '{}' "$(abspath $(DESTDIR)$(PREFIX))/share/{}" \;
	install -D -m 0644 -t "$(DESTDIR)$(PREFIX)/share/doc/boxd" LICENSE NOTICE
	install -D -m 0644 packaging/sysusers.d/boxd.conf "$(DESTDIR)$(PREFIX)/lib/sysusers.d/boxd.conf"
	install -D -m 0644 packaging/tmpfiles.d/boxd.conf "$(DESTDIR)$(PREFIX)/lib/tmpfiles.d/boxd.conf"

# Everything that "make install" installs, as packages of packaging/nfpm.yaml, and the list of what is in
# them. Two builds of one commit, by the same Go and C compiler, have the same bytes. For another architecture:
#   make packages GOARCH=arm64 CC=aarch64-linux-gnu-gcc
PACKAGES   ?= $(BIN)/packages
MAINTAINER ?= boxd maintainers <boxd@users.noreply.github.com>
.PHONY: packages
packages: export SOURCE_DATE_EPOCH := $(or $(SOURCE_DATE_EPOCH),$(shell git log -1 --format=%ct 2>/dev/null || date +%s))
packages:
	@rm -rf "$(BIN)/stage"
	@$(MAKE) -s --no-print-directory install DESTDIR="$(abspath $(BIN))/stage" PREFIX=/usr UNITDIR=/usr/lib/systemd/system
	@cd packaging/build && CGO_ENABLED=0 $(HOSTGO) build -buildvcs=false -o "$(abspath $(BIN))/.packages" .
	@umask 022; "$(BIN)/.packages" -stage "$(BIN)/stage" -out "$(PACKAGES)" -version '$(VERSION)' -maintainer '$(MAINTAINER)'

# What the packages contain; and their installation, upgrade and removal, with the units, in a virtual
# machine with systemd. The two packages differ in nothing but their versions. The provisioning of the
# Vagrantfile runs on the same kind of machine.
TRIAL = $(BIN)/packages-test
.PHONY: test-packages
test-packages:
	@.ci/setup packages
	cd packaging/build && $(GO) test -count=1 -timeout 30m $(ARGS) .
	@rm -rf "$(TRIAL)"; mkdir -p "$(TRIAL)/machine"; cp test/vm/guest/packages "$(TRIAL)/machine/"
	@for version in v0.0.1 v0.0.2; do \
		$(MAKE) -s --no-print-directory packages BIN="$(TRIAL)/$$version" VERSION=$$version && cp "$(TRIAL)/$$version"/packages/*.deb "$(TRIAL)/$$version"/packages/*.rpm "$(TRIAL)/machine/" || exit 1; \
	done
	$(ROOT) test/vm/with-systemd -t 5400 -p "$(TRIAL)/machine" -- bash -c '/mnt/packages /mnt/boxd_0.0.1-*.deb /mnt/boxd_0.0.2-*.deb /mnt/boxd-0.0.1-*.rpm /mnt/boxd-0.0.2-*.rpm'
	@rm -rf "$(TRIAL)"
	$(ROOT) test/vm/provision

.PHONY: clean
clean:
	rm -rf bin
