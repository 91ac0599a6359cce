# What can be done here: `make` lists it. Targets that mount or install need root.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
# mount(8) looks for its helpers here and nowhere else.
SBINDIR ?= /sbin
DESTDIR ?=
DIVERT ?= 0
CARGO_TARGET_DIR ?= target
export CARGO_TARGET_DIR

.PHONY: help
help: ## List the targets
	@echo "Strata: stackable file systems. Targets:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "Variables: PREFIX=$(PREFIX) SBINDIR=$(SBINDIR) DESTDIR= DIVERT=1 (install: move another package's helper aside)"

.PHONY: deps
deps: ## Install what building, running, testing and measuring need (Debian, root)
	@scripts/deps.sh build run test bench lint

.PHONY: build
build: ## Build the commands, optimised, in target/release
	@scripts/build.sh

.PHONY: run
run: ## See a read-only Debian system made writable by a union (root)
	@scripts/run.sh

.PHONY: test
test: ## Run every test, those on mounted file systems too (root)
	@scripts/test.sh

.PHONY: bench
bench: ## Measure against the native file system, overlayfs and FUSE peers (root)
	@scripts/bench.sh

.PHONY: lint
lint: ## Check formatting, clippy, scripts, and dependencies (cargo-deny, if installed)
	@scripts/lint.sh

.PHONY: book
book: ## Build the documentation as a book with search, target/book
	@scripts/book.sh

.PHONY: fuzz
fuzz: ## Feed the parsers random input: FUZZ_SECONDS=60 for each target
	@scripts/fuzz.sh

.PHONY: install
install: ## Build, if needed, and install the commands, manual pages, completions (root)
	@PREFIX='$(PREFIX)' SBINDIR='$(SBINDIR)' DESTDIR='$(DESTDIR)' DIVERT='$(DIVERT)' scripts/install.sh install

.PHONY: uninstall
uninstall: ## Remove what `make install` installed (root)
	@PREFIX='$(PREFIX)' SBINDIR='$(SBINDIR)' DESTDIR='$(DESTDIR)' DIVERT='$(DIVERT)' scripts/install.sh uninstall

.PHONY: clean
clean: ## Remove what was built; cache/ (images, sources) stays
	@rm -rf target
