# demo   answers 1,000 requests of a development chain by transactions, killed on the way; KEEP=1 leaves it running
# test   everything that must hold, in short seeded forms; what CI runs
# soak   the same at the stated sizes; takes long
# bench  speed as ratios beside floors; QUICK=1 takes under three minutes

CARGO ?= cargo
export CARGO_TERM_COLOR ?= auto
# A test that hangs is a failure: the whole run, once built, takes a third of this.
TEST_TIME ?= 40m

.PHONY: demo test soak bench tools fmt

tools:
	@./scripts/install-tools

demo: tools
	$(CARGO) build --release -p roundtrip-server --bin roundtrip --example demo
	KEEP=$(KEEP) $${CARGO_TARGET_DIR:-target}/release/examples/demo

test: tools
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --all-features --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --all-features --no-deps --quiet
	$(CARGO) test --workspace --all-features --no-run
	timeout --kill-after=10s $(TEST_TIME) $(CARGO) test --workspace --all-features
	$(CARGO) check -p roundtrip --no-default-features --quiet
	$(CARGO) check -p roundtrip --no-default-features --features redis --quiet
	$(CARGO) check -p roundtrip --no-default-features --features postgres --quiet

soak: tools
	PROPTEST_CASES=5000 SIMULATE_SECONDS=900 SOAK=1 RUSTFLAGS="--cfg soak" $(CARGO) test --release --workspace --all-features
	$(CARGO) run --release -p roundtrip-bench -- --soak

bench: tools
	$(CARGO) run --release -p roundtrip-bench -- $(if $(QUICK),--quick)

fmt:
	$(CARGO) fmt --all
