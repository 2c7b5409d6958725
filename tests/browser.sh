#!/usr/bin/env bash
# Opens what afterfit shows in a real Chromium and checks what a person would see and do. Usage: tests/browser.sh AFTERFIT [NAME…]
set -euo pipefail
cd "$(dirname "$0")/.."
AFTERFIT=$(realpath "$1")
export AFTERFIT
shift
if ! command -v "${CHROMIUM:-chromium}" >/dev/null; then
    if [ "$(id -u)" != 0 ]; then
        echo "chromium is needed: install it (Debian: apt-get install chromium)" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null
fi
CHROMIUM=$(command -v "${CHROMIUM:-chromium}")
export CHROMIUM
make --silent web/node_modules/.package-lock.json
cd web
npm run --silent e2e -- "$@"
