#!/bin/sh
# From a fresh machine to a trained model: installs packages, builds plc, compiles 01-quickstart.plan, trains it on the
# licences that every Debian and Ubuntu system has, and prints text that the model makes up.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=$root/build/release
mkdir -p "$root/build"
echo "== building plc"
sh "$root/scripts/setup.sh" "$build"
work=$root/build/quickstart
mkdir -p "$work"
cd "$work"
echo "== plc build examples/01-quickstart.plan"
"$build/bin/plc" build "$root/examples/01-quickstart.plan" -o train "$@"
echo "== ./train"
./train
echo "== ./train sample"
./train sample --prompt "The license " --tokens 400
