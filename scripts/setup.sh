#!/bin/sh
# Makes .venv in the project root: the pinned packages of requirements.lock, and the project itself (editable).
# Does nothing when .venv already matches requirements.lock and pyproject.toml.
#
#   PYTHON=/path/to/python sh scripts/setup.sh     chooses the interpreter
set -eu

cd "$(dirname "$0")/.."
root=$(pwd -P)
venv=.venv
stamp=$venv/.penstock-stamp

say() { echo "penstock: $*"; }
fail() {
    echo "penstock: $1" >&2
    echo "  hint: $2" >&2
    exit 1
}

# An interpreter counts only if it runs: a version manager's shim may be on PATH with nothing behind it.
version_of() { "$1" -c 'import sys; print("%d.%d.%d" % sys.version_info[:3])' 2>/dev/null; }
is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
    got=""
    if [ -n "${PYTHON:-}" ]; then
        is_new_enough "$PYTHON" && { echo "$PYTHON"; return; }
        found=$(version_of "$PYTHON") || found="nothing that runs"
        fail "Penstock needs Python 3.11 or later; got PYTHON=$PYTHON ($found)" \
             "set PYTHON to a newer interpreter, or unset it to let this script look for one"
    fi
    for candidate in python3.13 python3.12 python3.11 python3; do
        is_new_enough "$candidate" && { echo "$candidate"; return; }
        found=$(version_of "$candidate") && got="$got $candidate is $found;"
    done
    fail "Penstock needs Python 3.11 or later; got${got:- no python3 on PATH}" \
         "install one, or name it: PYTHON=/path/to/python3.11 make setup"
}

# The root is part of it because the scripts in .venv/bin hold absolute paths: a moved project needs a new .venv.
fingerprint() {
    echo "root $root"
    cksum requirements.lock pyproject.toml
}

# Content is compared, not time: a checkout makes unchanged files look new.
if [ -f "$stamp" ] && [ -x "$venv/bin/python" ] && [ "$(fingerprint)" = "$(cat "$stamp")" ]; then
    exit 0
fi

if [ -f "$stamp" ] && [ "$(head -n 1 "$stamp")" != "root $root" ]; then
    say "the project has moved; making .venv anew"
    rm -rf "$venv"
elif [ -e "$venv" ] && ! is_new_enough "$venv/bin/python"; then
    say ".venv has no Python 3.11 or later; making it anew"
    rm -rf "$venv"
fi
if [ -f "$stamp" ]; then when="the lock or pyproject.toml has changed"; else when="first use only"; fi
rm -f "$stamp"

if ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    python=$(find_python)
    say "making .venv with Python $(version_of "$python") ..."
    "$python" -m venv "$venv" || fail "python -m venv failed with $python" \
        "some systems ship it apart from Python, as python3-venv"
fi

# Twice quiet: errors alone, for the progress lines here say the rest.
pip() { "$venv/bin/python" -m pip --disable-pip-version-check --quiet --quiet "$@"; }

say "installing $(grep -c '^[A-Za-z0-9]' requirements.lock) pinned packages ($when) ..."
pip install --require-hashes --requirement requirements.lock || fail \
    "the packages of requirements.lock could not be installed" \
    "the first use needs the network; a hash that differs means the file served is not the file that was locked"

say "installing penstock itself (editable) ..."
pip install --no-deps --no-build-isolation --editable . || fail "penstock itself could not be installed" \
    "pyproject.toml may be at fault: the message is above"

fingerprint >"$stamp"
say "ready: .venv/bin/penstock"
