# Development tasks: `make` lists them. Targets that mount or install need root.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
# mount(8) looks for its helpers in this directory only.
SBINDIR ?= /sbin
DESTDIR ?=
DIVERT ?= 0
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

.PHONY: help
help: ## List the targets
	@echo "Strata: stackable file systems. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PREFIX=$(PREFIX) SBINDIR=$(SBINDIR) DESTDIR= DIVERT=1 (install: move another package's helper aside)"

.PHONY: deps
deps: ## Install the packages for building, running, testing and benchmarks (Debian, root)
	@scripts/deps.sh build run test bench lint

.PHONY: build
build: ## Build the program, optimised, in target/release
	@scripts/build.sh

.PHONY: run
run: ## Demonstration: a read-only Debian system made writable by a union (root)
	@scripts/run.sh

.PHONY: test
test: ## Run every test, including those that mount file systems (root)
	@scripts/test.sh

.PHONY: test-long
test-long: ## Run every test at full length, for hours; can be interrupted and continued (root)
	@scripts/test-long.sh

.PHONY: bench
bench: ## Compare with the native file system, overlayfs and FUSE peers (root)
	@scripts/bench.sh

.PHONY: lint
lint: ## Check formatting, clippy, scripts, and dependencies
	@scripts/lint.sh

.PHONY: book
book: ## Build the documentation as a book with search, target/book
	@scripts/book.sh

.PHONY: fuzz
fuzz: ## Fuzz the parsers, FUZZ_SECONDS=60 for each target
	@scripts/fuzz.sh

.PHONY: install
install: ## Build if needed; install program, helpers, manual pages, completions (root)
	@PREFIX='$(PREFIX)' SBINDIR='$(SBINDIR)' DESTDIR='$(DESTDIR)' DIVERT='$(DIVERT)' scripts/install.sh install

.PHONY: uninstall
uninstall: ## Remove everything that `make install` installed (root)
	@PREFIX='$(PREFIX)' SBINDIR='$(SBINDIR)' DESTDIR='$(DESTDIR)' DIVERT='$(DIVERT)' scripts/install.sh uninstall

.PHONY: install-boot
install-boot: ## Install the scripts for a union as root file system, docs/boot.md (root)
	@DESTDIR='$(DESTDIR)' scripts/install-boot.sh install

.PHONY: uninstall-boot
uninstall-boot: ## Remove what `make install-boot` installed (root)
	@DESTDIR='$(DESTDIR)' scripts/install-boot.sh uninstall

.PHONY: clean
clean: ## Remove build results; keep cache/ (images, sources) and ~/.cache/strata (tools)
	@rm -rf target
