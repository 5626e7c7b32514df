#!/bin/sh
# What tests need from Debian: a browser for the page, promtool for the metrics, nginx as a proxy, a Redis 7 for its
# users. Where one cannot be had, as without root or a network, its tests skip and say so.
set -u
cd "$(dirname "$0")/.." || exit 0
missing=""
command -v chromium >/dev/null && command -v chromedriver >/dev/null || missing="chromium chromium-driver"
mkdir -p build
unpacked=""
# Unpacked and not installed: these packages would start a server.
for tool in prometheus/bin/promtool nginx/sbin/nginx; do
  command -v "${tool##*/}" >/dev/null || [ -x "build/${tool##*/}" ] || unpacked="$unpacked $tool"
done
# Debian's redis-server is this file under another name; its package would start a server.
command -v redis-check-rdb >/dev/null || missing="$missing redis-tools"
[ -n "$missing$unpacked" ] || exit 0
[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || { echo "not installed: $missing $unpacked (needs root and apt-get)"; exit 0; }
apt-get update -qq >build/apt.log 2>&1
# shellcheck disable=SC2086 # two words
[ -z "$missing" ] || DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >>build/apt.log 2>&1 \
  || echo "not installed: $missing (build/apt.log says why)"
[ -e build/redis-server ] || ln -s "$(command -v redis-check-rdb)" build/redis-server 2>/dev/null
for tool in $unpacked; do
  package=${tool%%/*} program=${tool##*/}
  (
    cd build && apt-get download -qq "$package" >>apt.log 2>&1 && dpkg -x "$package"_*.deb unpacked \
      && mv "unpacked/usr/${tool#*/}" "$program" && rm -rf unpacked "$package"_*.deb
  ) || echo "not installed: $program (build/apt.log says why)"
done
exit 0
