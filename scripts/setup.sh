#!/bin/sh
# Installs the distribution's packages where they are missing, and builds plc.
#   sh scripts/setup.sh BUILD_FOLDER [with-tests]
# As root or with sudo it installs; otherwise it prints what to install and stops with 3.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
build=${1:?"usage: sh scripts/setup.sh BUILD_FOLDER [with-tests]"}
tests=${2:-}

column=2
if [ -r /etc/os-release ] && grep -qi '^ID=ubuntu' /etc/os-release; then column=3; fi
if [ "$tests" = with-tests ]; then filter='^#|^$'; else filter='^#|^$|^test:'; fi
packages=$(grep -Ev "$filter" "$root/scripts/packages.txt" | awk -v c=$column '{print $c}' | sort -u)

missing=
for package in $packages; do
    dpkg -s "$package" 2>/dev/null | grep -q '^Status: install ok installed' || missing="$missing $package"
done
if [ -n "$missing" ]; then
    echo "installing:$missing"
    install="env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $missing"
    if [ "$(id -u)" = 0 ]; then
        apt-get update -qq && $install >/dev/null
    elif command -v sudo >/dev/null && sudo -n true 2>/dev/null; then
        sudo apt-get update -qq && sudo $install >/dev/null
    else
        echo "setup: root rights are needed to install packages; run this, then try again:" >&2
        echo "    sudo apt-get install$missing" >&2
        exit 3
    fi
fi

options="-DCMAKE_BUILD_TYPE=Release -DPLAN_TESTS=$([ "$tests" = with-tests ] && echo ON || echo OFF)"
[ "$tests" = with-tests ] && options="$options -DPLAN_WERROR=ON"
[ -f "$build/build.ninja" ] || cmake -S "$root" -B "$build" -G Ninja $options >"$build.log" 2>&1 || { cat "$build.log" >&2; exit 1; }
rm -f "$build.log"
cmake --build "$build" --parallel "$(nproc)" >"$build/build.log" 2>&1 || { tail -40 "$build/build.log" >&2; exit 1; }
