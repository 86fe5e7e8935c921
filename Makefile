# `make` alone lists everything. All targets build the environment from the lock first, and only if the lock has changed.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
BIN := .venv/bin
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPATH := $(CURDIR)/include:$(CURDIR)$(if $(PYTHONPATH),:$(PYTHONPATH))

.PHONY: help pictures recording site demo demo-down status venv kernels servers test test-fast test-all test-mutants test-again test-stress test-matrix test-elsewhere durations check check-quick lint format docs lock lowest package bench bench-capture bench-apply bench-freshness bench-distance bench-dump bench-verify bench-digests bench-subscribe bench-snapshot bench-memory bench-control bench-catchup bench-channel bench-pipelines bench-page bench-scale bench-small bench-small-batch bench-targets bench-peers league league-page faults clean bench-postgresql

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: ## from nothing to a running pipeline: MySQL x2, ZooKeeper, Spark, Airflow, a live workload, a comparison; TARGET=KIND: a second target too, a wrong name lists the kinds; CHANNEL=1: both servers take writes; SOURCE=postgresql: from PostgreSQL
	@.ci/require java disk
	@.ci/venv
	@exec $(BIN)/python -m devstack demo --target "$(TARGET)" --source "$(SOURCE)" $(if $(CHANNEL),--channel)

demo-down: ## stop all that demo started
	@if [ -x $(BIN)/python ]; then exec $(BIN)/python -m devstack down; else echo "the stack is not running"; fi

status: venv ## what of the stack runs, where
	@$(BIN)/python -m devstack status

venv: ## the environment, from requirements.txt
	@.ci/venv

kernels: venv
	@$(BIN)/python -c "from sluice.sources import compile_kernels; compile_kernels()"

servers: venv
	@$(BIN)/python -m devstack.fetching

PYTEST = $(BIN)/python -m pytest -n $${SLUICE_TEST_WORKERS:-3} --dist loadfile --no-loadscope-reorder

# The servers come while the environment is made, mypy works where the tests wait, and what it found is said at the end.
test: ## what CI runs: checks, and a test of each promise on real servers
	@mkdir -p .sluice; python=$$(.ci/python); trap 'kill $$(jobs -pr) 2>/dev/null || true' EXIT; \
	PYTHONPATH=include $$python -m devstack.packages >.sluice/packages.log 2>&1 & \
	.ci/venv; \
	$(BIN)/python -m devstack.fetching --make-test >.sluice/fetching.log 2>&1 & \
	nice -n 10 $(BIN)/mypy >.sluice/mypy.log 2>&1 & mypy=$$!; \
	$(MAKE) --no-print-directory -j2 -O kernels check-quick; \
	tested=0; SLUICE_FAULT_SEED=$${SLUICE_FAULT_SEED:-1} $(PYTEST) -m "not bench and not full" -q || tested=$$?; \
	wait $$mypy || { cat .sluice/mypy.log; exit 1; }; \
	exit $$tested

test-fast: venv kernels ## unit tests and the contract suites in memory: no server, no Spark, no Airflow
	@SLUICE_EXAMPLES=$${SLUICE_EXAMPLES:-quick} $(PYTEST) -m "not bench and not full and not server and not slow" -q tests/unit tests/contract/test_sources.py tests/contract/test_suite_itself.py

test-all: venv kernels servers check ## everything: both dialects, all examples, long walks, dry benches; writes tests/last-full-run.md and tests/durations.json
	@SLUICE_EXAMPLES=$${SLUICE_EXAMPLES:-full} SLUICE_FAULTS=$${SLUICE_FAULTS:-12} SLUICE_CUTOVERS=$${SLUICE_CUTOVERS:-50} $(PYTEST) -m "not bench" -q --write-durations --write-last-full-run
	@SLUICE_BENCH_SCALE=$${SLUICE_BENCH_SCALE:-0.02} SLUICE_BENCH_DRY=1 $(MAKE) --no-print-directory bench-targets
	@$(MAKE) --no-print-directory test-mutants

test-mutants: venv kernels servers ## breaks each promise of the product in a copy and looks for its tests to fail; PROMISES="A11 B8": only those; writes tests/mutants-results.md
	@$(BIN)/python -m tests.support.suite.mutants $(PROMISES)

test-again: venv kernels servers ## what failed in the last `make test-all`, with the code as it is now; adds to tests/last-full-run.md what came of it
	@SLUICE_EXAMPLES=$${SLUICE_EXAMPLES:-full} SLUICE_FAULTS=$${SLUICE_FAULTS:-12} $(PYTEST) -m "not bench" -q --failed-in-last-full-run

league: venv kernels servers ## the CDC league: TOOL=… CASE=… (a part of SERVER/NAME): hard cases with each tool, the server's answer as truth; writes tests/league/results and docs/league.md
	@$(BIN)/python -m tests.league $(if $(TOOL),--tool $(TOOL)) $(if $(CASE),--case '$(CASE)')

league-page: venv ## docs/league.md and docs/league/ from the stored results
	@$(BIN)/python -m tests.league.page

test-stress: venv kernels ## FILES=…: these tests 20 times (TIMES=…) in parallel with four busy loops; says how often each failed
	@$(BIN)/python -m tests.support.suite.stress --times $(or $(TIMES),20) $(FILES)

test-matrix: venv kernels ## CELLS=…: chosen tests with other versions of Python, Airflow, Spark and servers; writes docs/versions.md
	@$(BIN)/python -m tests.support.suite.matrix $(CELLS)

test-elsewhere: venv kernels ## unit tests in another time zone and language, as an ordinary user, with 300 MB for temporary files
	@SLUICE_EXAMPLES=quick .ci/elsewhere $(PYTEST) -m "not bench and not full and not server and not slow" -q tests/unit

durations: venv kernels servers ## measure every file of make test and write tests/durations.json, which shares them among the workers
	@SLUICE_FAULT_SEED=$${SLUICE_FAULT_SEED:-1} $(PYTEST) -m "not bench and not full" -q --write-durations

check: check-quick ## format, lint, types, import contracts, openings of sentences; part of test
	@$(BIN)/mypy

check-quick: venv
	@$(BIN)/ruff format --check --quiet . || { echo "format: run make format"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python .ci/openings
	@$(BIN)/lint-imports

lint: venv ## ruff and mypy only
	@$(BIN)/ruff check .
	@$(BIN)/mypy

format: venv ## rewrite the code in the house's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix --quiet . || true

docs: venv ## write the tables of targets (README.md, docs/targets.md), of metrics (docs/monitor.md), of errors (docs/errors.md), variables and connections (docs/deploy.md), privileges (pages of MySQL and PostgreSQL) again
	@$(BIN)/python -m tests.support.documents.targets_table
	@$(BIN)/python -m tests.support.documents.metrics_table
	@$(BIN)/python -m tests.support.documents.errors_page
	@$(BIN)/python -m tests.support.documents.surroundings_tables
	@$(BIN)/python -m tests.support.documents.rights_tables

site: venv ## the documentation with search, and an index of all errors, in .sluice/site/html/VERSION; versions of other checkouts that are there stay, and can be chosen
	@mkdir -p .sluice && test -x .sluice/site/env/bin/mkdocs || { $(BIN)/python -m venv .sluice/site/env && .sluice/site/env/bin/python -m pip install --quiet --require-hashes -r .ci/site/requirements.txt; }
	@NO_MKDOCS_2_WARNING=1 .sluice/site/env/bin/mkdocs build --quiet --strict -f .ci/site/mkdocs.yml
	@echo "to read and search it: $(BIN)/python -m http.server --bind 127.0.0.1 --directory .sluice/site/html"

UV = $$(command -v $(BIN)/uv || command -v uv)
COMPILE = $(UV) pip compile --quiet --universal --python-version 3.11

pictures: venv kernels servers ## screenshots of the operator's page, every tab in both schemes, into docs/images
	@SLUICE_SCREENSHOTS=$(CURDIR)/docs/images $(BIN)/python -m pytest -n 0 -q tests/ui/test_operator_page.py tests/ui/test_pipeline_editor.py tests/ui/test_editor_form.py tests/ui/test_group_page.py -k "tab_shows or list_is or dialog_is or by_clicking or edited_in_its_form or moves_the_group"

recording: venv ## make demo, recorded as docs/images/demo.svg
	@.ci/recording docs/images/demo.svg "make demo" "sluice status" "sluice verify shop_to_reporting" "make demo-down"

lock: venv ## compile requirements.in and requirements-dev.in into requirements.txt, and the product's part of it into docker/requirements.txt
	@$(COMPILE) --generate-hashes requirements-dev.in -o requirements.txt
	@$(COMPILE) --generate-hashes --all-extras --constraint requirements.txt pyproject.toml -o docker/requirements.txt

lowest: venv ## resolve the lower bounds of the package's requirements
	@$(COMPILE) --all-extras --resolution lowest-direct pyproject.toml

package: venv ## wheel and source distribution, in dist/
	@$(BIN)/python .ci/package

bench: bench-capture bench-apply bench-freshness bench-distance bench-dump bench-memory ## measure; prints ratios against a baseline measured in the same run, writes tests/bench/results

bench-capture: venv kernels servers ## capture alone, against mysql-replication on the same log
	@$(BIN)/python tests/bench/bench_capture.py

bench-apply: venv kernels servers ## merge and load, from position to acknowledgement, against a native replica on the same log
	@$(BIN)/python tests/bench/bench_apply.py

bench-freshness: venv kernels servers ## seconds from a commit at the source to visible at the target, on the demo stack, against a native replica
	@$(BIN)/python tests/bench/bench_freshness.py

bench-catchup: venv kernels servers ## seconds until a backlog of 3,000,000 changes is delivered by the real DAG and Spark, against a native replica
	@$(BIN)/python tests/bench/bench_catchup.py

bench-channel: venv kernels servers ## what the marks of a channel cost, and seconds until two sites that both take writes are equal
	@$(BIN)/python tests/bench/bench_channel.py

bench-distance: venv kernels servers ## catch-up with 30 ms to the source and to the target, against the same job side by side
	@$(BIN)/python tests/bench/bench_distance.py

bench-control: venv kernels servers ## seconds from pause, resume, restart or rollback until every run in flight obeys, on the demo stack
	@$(BIN)/python tests/bench/bench_control.py

bench-pipelines: venv kernels servers ## how many pipelines one Airflow carries, what idle ones cost, what a busy one leaves an hour; against a run a batch
	@$(BIN)/python tests/bench/bench_pipelines.py

bench-scale: venv kernels servers ## what each stage of a batch costs, and with it what a thousand pipelines and 100 TB a day take
	@$(BIN)/python tests/bench/bench_scale.py

bench-small: venv kernels servers ## two MySQL servers and sluice run with positions in a file: start, memory, idle CPU and freshness beside ZooKeeper, canal and Debezium's engine
	@$(BIN)/python tests/bench/bench_small.py

bench-small-batch: venv kernels servers ## processor seconds and ZooKeeper requests of a batch of 500 changes, against the smallest client without promises
	@$(BIN)/python tests/bench/bench_small_batch.py

bench-page: venv kernels servers ## first paint and refresh of the operator's page with 200 pipelines of 50 tables, and what an open page reads of ZooKeeper and the metadata database
	@$(BIN)/python tests/bench/bench_page.py

bench-dump: venv kernels servers ## rows a second of a dump with the log flowing, and the log's lag meanwhile, against mysqldump
	@$(BIN)/python tests/bench/bench_dump.py

bench-subscribe: venv kernels servers ## rows a second to one Arrow Flight client of sluice serve, against pyarrow that reads the same files
	@$(BIN)/python tests/bench/bench_subscribe.py

bench-snapshot: venv kernels servers ## a cold start from the snapshot against a copy and mysqldump with a replica, rows a second of it to a reader, and what a batch costs it
	@$(BIN)/python tests/bench/bench_snapshot.py

bench-verify: venv kernels servers ## rows a second of a verification, by checksums beside pt-table-checksum and by rows through a rule, and the log's lag meanwhile
	@$(BIN)/python tests/bench/bench_verify.py

bench-digests: venv kernels servers ## what digests kept from the log cost for 100,000 changes, and how fast they answer whether a table is equal
	@$(BIN)/python tests/bench/bench_digests.py

bench-targets: venv kernels servers ## each kind of target beside its store's own bulk loader, and from MySQL's log on; SLUICE_BENCH_SCALE=0.02 SLUICE_BENCH_DRY=1: does it work
	@for one in tests/bench/bench_target_*.py; do $(BIN)/python $$one; done

bench-peers: venv kernels servers ## capture beside go-mysql, Debezium's engine and mysql-replication on the same log, and Kafka Connect into Kafka and PostgreSQL
	@$(BIN)/python tests/bench/bench_peers.py
	@$(BIN)/python tests/bench/bench_target_peers.py

bench-postgresql: venv kernels servers ## PostgreSQL as a source: capture against pg_recvlogical, catching up and freshness against a subscription, a copy against COPY and pg_dump, several slots against one
	@$(BIN)/python tests/bench/bench_postgresql.py
	@$(BIN)/python tests/bench/bench_postgresql_flows.py
	@$(BIN)/python tests/bench/bench_postgresql_slots.py

bench-memory: venv kernels servers ## the peak memory of each process that drains, merges and loads one transaction of 2 GB, against the goal of 1 GiB
	@$(BIN)/python tests/bench/bench_memory.py

faults: venv kernels servers ## a random walk over 60 faults (SLUICE_FAULTS=1000: the long one), kills on the whole stack, every point of a pause, all dumps that replace
	@SLUICE_FAULTS=$${SLUICE_FAULTS:-60} SLUICE_STACK_CHANGES=$${SLUICE_STACK_CHANGES:-200000} SLUICE_DUMP_KILLS=$${SLUICE_DUMP_KILLS:-8} $(BIN)/python -m pytest tests/faults tests/integration/dump/test_dump_replace.py tests/integration/airflow/test_airflow_backfill.py tests/integration/airflow/test_airflow_standby.py -q -s

clean: demo-down ## remove the environment, fetched servers, data and caches
	rm -rf .venv .sluice .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
