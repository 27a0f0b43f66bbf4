#!/bin/sh
# Regenerates requirements.lock: every package of the project and its extras, pinned and hashed, for
# Python 3.11 and later on every platform. Pins stay as they are unless pyproject.toml excludes them:
#
#   make lock                     adds and removes what pyproject.toml asks for
#   make lock ARGS=--upgrade      moves every pin to its newest version
#
# uv lives in a temporary environment, as nothing else needs it. Its configuration is ignored, so that
# a machine with indexes of its own makes the same file.
set -eu

cd "$(dirname "$0")/.."
tool=$(mktemp -d)
trap 'rm -rf "$tool"' EXIT
trap 'exit 1' INT TERM

echo "penstock: fetching the resolver ..."
"${PYTHON:-python3}" -m venv "$tool"
"$tool/bin/python" -m pip install --quiet --quiet --disable-pip-version-check uv

unset UV_INDEX UV_INDEX_URL UV_DEFAULT_INDEX UV_EXTRA_INDEX_URL UV_FIND_LINKS
echo "penstock: resolving ..."
"$tool/bin/uv" pip compile pyproject.toml \
    --quiet --no-config --universal --python-version 3.11 --all-extras --generate-hashes \
    --no-emit-index-url --no-emit-find-links --no-annotate \
    --custom-compile-command "make lock" \
    --output-file requirements.lock "$@"
echo "penstock: requirements.lock holds $(grep -c '^[A-Za-z0-9]' requirements.lock) pinned packages"
