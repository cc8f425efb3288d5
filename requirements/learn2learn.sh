#!/usr/bin/env bash
# Builds learn2learn 0.2.0 and installs it into a virtual environment: requirements/learn2learn.sh VENV
#
# The release on PyPI ships C files that Cython made before Python 3.11; they have to be made again.
# That takes an old Cython and an old setuptools, so it happens in an environment of its own, and only
# the wheel comes across. Its dependencies are left out, because qpth would pull NumPy below 2.
set -euo pipefail

venv=$(cd "$1" && pwd)
if "$venv/bin/python" -c 'import learn2learn' >/dev/null 2>&1; then
    exit 0
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m venv "$work/build"
"$work/build/bin/python" -m pip install --quiet --upgrade pip 'cython<3' 'setuptools<81' wheel
CYTHON_FORCE_REGEN=1 "$work/build/bin/python" -m pip wheel --quiet --no-deps --no-build-isolation --use-pep517 \
    -C--build-option=build_ext --no-cache-dir --wheel-dir "$work/wheels" learn2learn==0.2.0
"$venv/bin/python" -m pip install --quiet gym requests
"$venv/bin/python" -m pip install --quiet --no-deps "$work"/wheels/learn2learn-*.whl
"$venv/bin/python" -c 'import learn2learn' 2>/dev/null
