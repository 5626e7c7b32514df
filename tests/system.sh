#!/bin/sh
# What tests need from Debian: a browser for the page, promtool for the metrics, a Redis 7 for its users. Where one
# cannot be had, as without root or a network, its tests skip and say so.
set -u
cd "$(dirname "$0")/.." || exit 0
missing=""
command -v chromium >/dev/null && command -v chromedriver >/dev/null || missing="chromium chromium-driver"
mkdir -p build
command -v promtool >/dev/null || [ -x build/promtool ] || tool=prometheus
# Debian's redis-server is this file under another name; its package would start a server.
command -v redis-check-rdb >/dev/null || missing="$missing redis-tools"
[ -n "$missing${tool:-}" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "not installed: $missing ${tool:-} (needs root and apt-get)"; exit 0; }
apt-get update -qq >build/apt.log 2>&1
# shellcheck disable=SC2086 # two words
[ -z "$missing" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>build/apt.log 2>&1 \
  || echo "not installed: $missing (build/apt.log says why)"
[ -e build/redis-server ] || ln -s "$(command -v redis-check-rdb)" build/redis-server 2>/dev/null
# Unpacked and not installed: the package would start a server.
[ -z "${tool:-}" ] || (
  cd build && apt-get download -qq prometheus >>apt.log 2>&1 && dpkg -x prometheus_*.deb prometheus-package \
    && mv prometheus-package/usr/bin/promtool promtool && rm -rf prometheus-package prometheus_*.deb
) || echo "not installed: promtool (build/apt.log says why)"
exit 0
