#!/bin/sh
# Sets up, builds and runs the tests.
#   sh tests/run.sh          every test of the ordinary run
#   sh tests/run.sh fast     those under two minutes in all
#   sh tests/run.sh all      also every pair of kinds of parallelism for every model, which takes hours
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${PLAN_BUILD:-$root/build/tests}
mkdir -p "$root/build"
sh "$root/scripts/setup.sh" "$build" with-tests
cd "$build"
case "${1:-}" in
fast) exec ctest --output-on-failure -L fast --parallel 2 ;;
all) exec ctest --output-on-failure --parallel 2 ;;
*) exec ctest --output-on-failure -LE all --parallel 2 ;;
esac
