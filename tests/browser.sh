#!/usr/bin/env bash
# Opens the demo's report in headless Chromium and checks what a person would see. Usage: tests/browser.sh AFTERFIT
set -euo pipefail
afterfit=$(realpath "$1")
if ! command -v chromium >/dev/null; then
    if [ "$(id -u)" != 0 ]; then
        echo "chromium is needed: install it (Debian: apt-get install chromium)" >&2
        exit 1
    fi
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y chromium >/dev/null
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
"$afterfit" demo >demo.txt
flags=(--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking
    --disable-component-update --disable-sync --user-data-dir="$work/profile")
page="file://$work/afterfit-demo/report.html"
chromium "${flags[@]}" --dump-dom "$page" >page.html 2>/dev/null
chromium "${flags[@]}" --screenshot="$work/page.png" --window-size=1000,2400 "$page" >/dev/null 2>&1

passed=0 failed=0
check() { # NAME COMMAND…
    local name=$1
    shift
    if "$@" >/dev/null; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAIL  $name"
    fi
}
count() { [ "$(grep -o "$1" page.html | wc -l)" "$2" "$3" ]; }
check "charts are drawn" count '<polyline' -ge 10
check "a picture for each digit" count 'shape-rendering="crispEdges"' -eq 10
check "every strength has a row" count '<tr' -ge 40
check "the rows are folded away" count '<details' -eq 1
check "the best is marked" count 'class="best"' -eq 1
check "no chart holds a number that is not one" bash -c '! grep -q "NaN\|inf," page.html'
check "nothing is fetched" bash -c '! grep -Eq "(src|href)=\"(https?:)?//" page.html'
check "the screenshot is not blank" test "$(wc -c <page.png)" -gt 50000
echo "$passed passed, $failed failed"
[ "$failed" = 0 ]
