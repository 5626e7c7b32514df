#!/usr/bin/env bash
# Builds the image, starts docker-compose.yml under a project name of its own, has the worker train one job that is
# enqueued from outside it, and takes everything down again, volumes too. Exit code 0: the job was trained.
#   deploy/smoke.sh [--no-build]
#     DOCKER               the docker command, seen from the repository's root (docker)
#     PREFLIGHT_HOST_DATA  a directory of this host with MNIST in it; otherwise the worker downloads it
#     SMOKE_JOB            options of `preflight enqueue` (--dataset mnist --model cnn)
#     SMOKE_TIMEOUT        seconds that the job may take (600)
#   and whatever docker-compose.yml reads: TORCH_INDEX_URL, TORCH_PACKAGES, PREFLIGHT_MEMORY, PREFLIGHT_CPUS ...
set -euo pipefail
cd "$(dirname "$0")/.."
build=1
case "${1-}" in
  "") ;;
  --no-build) build= ;;
  *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
esac
docker=${DOCKER:-docker}
read -ra job <<<"${SMOKE_JOB:---dataset mnist --model cnn}"
compose() { "$docker" compose -p preflight-smoke "$@"; }
output=$(mktemp)

finish() {
  status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then
    echo "smoke: failed; the worker's last lines:" >&2
    compose logs worker 2>&1 | tail -n 40 >&2 || true
  fi
  compose down -v >/dev/null 2>&1 || { echo "smoke: compose down failed" >&2; status=1; }
  rm -f "$output"
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ -z "$build" ] || compose build
started=$SECONDS
compose up -d
# depends_on waits for this already; not every engine that takes the file knows the condition.
for _ in $(seq 30); do
  [[ $(compose exec -T redis redis-cli ping 2>/dev/null) == *PONG* ]] && break
  sleep 1
done

timeout "${SMOKE_TIMEOUT:-600}" "$docker" compose -p preflight-smoke run --rm -T --no-deps worker \
  enqueue "${job[@]}" --wait | tee "$output"
accuracy=$(sed -n 's/.*test accuracy \([0-9.]*%\).*/\1/p' "$output")
if [ -z "$accuracy" ]; then
  echo "smoke: the job ended without a test accuracy" >&2
  exit 1
fi
echo "smoke: ok, test accuracy $accuracy, $((SECONDS - started)) s after compose up"
