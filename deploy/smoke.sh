#!/usr/bin/env bash
# Builds the image, starts docker-compose.yml under a project name of its own, enqueues one job over HTTP as a user of
# this host would, and takes everything down again, volumes too. Exit code 0: the job was trained.
#   deploy/smoke.sh [--no-build] [--group]
#     --no-build           the image is there already
#     --group              three workers, and one job that all of them train together
#     DOCKER               the docker command, seen from the repository's root (docker)
#     PREFLIGHT_HOST_DATA  a directory of this host with MNIST in it; otherwise the worker downloads it
#     SMOKE_JOB            its fields ("dataset": "mnist", "model": "cnn")
#     SMOKE_TIMEOUT        seconds that the job may take (600)
#     PREFLIGHT_PORT       of this host's loopback, for the web service (8000)
#   and whatever docker-compose.yml reads: TORCH_INDEX_URL, TORCH_PACKAGES, PREFLIGHT_MEMORY, PREFLIGHT_CPUS ...
set -euo pipefail
cd "$(dirname "$0")/.."
build=1 workers=1
for option in "$@"; do
  case "$option" in
    --no-build) build= ;;
    --group) workers=3 ;;
    *) sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 2 ;;
  esac
done
docker=${DOCKER:-docker}
fields="${SMOKE_JOB:-"\"dataset\": \"mnist\", \"model\": \"cnn\""}, \"workers\": $workers"
jobs=http://127.0.0.1:${PREFLIGHT_PORT:-8000}/v1/jobs
compose() { "$docker" compose -p preflight-smoke "$@"; }
ask() { curl --silent --max-time 10 -H "authorization: Bearer $token" -H "content-type: application/json" "$@"; }
accepted() {
  token=$(compose exec -T web cat /run/preflight/api_token 2>/dev/null) || return 1
  ask --fail --output /dev/null --data "{\"type\": \"preflight.train.v1\", \"job_id\": \"smoke\", $fields}" "$jobs"
}

finish() {
  status=$?
  trap - EXIT
  if [ "$status" -ne 0 ]; then
    echo "smoke: failed; the worker's last lines:" >&2
    compose logs worker 2>&1 | tail -n 40 >&2 || true
  fi
  # podman-compose's down knows one container a service.
  "$docker" ps -aq --filter label=com.docker.compose.project=preflight-smoke | xargs -r "$docker" rm -f >/dev/null 2>&1 || true
  compose down -v >/dev/null 2>&1 || { echo "smoke: compose down failed" >&2; status=1; }
  exit "$status"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

[ -z "$build" ] || compose build
started=$SECONDS
compose up -d --scale worker="$workers"
# depends_on waits for Redis already; not every engine that takes the file knows the condition.
until accepted; do
  [ $((SECONDS - started)) -lt 120 ] || { echo "smoke: no job was accepted within 120 s" >&2; exit 1; }
  sleep 0.2
done
echo "smoke: accepted $((SECONDS - started)) s after compose up"
state=queued
while [[ $state == *queued* || $state == *running* ]]; do
  [ $((SECONDS - started)) -lt "${SMOKE_TIMEOUT:-600}" ] || { echo "smoke: still $state" >&2; exit 1; }
  sleep 1
  answer=$(ask "$jobs/smoke") || continue
  state=$(sed -n 's/.*"status": *"\([a-z]*\)".*/\1/p' <<<"$answer" | head -n 1)
done
accuracy=$(sed -n 's/.*"test_accuracy": *\([0-9.]*\).*/\1/p' <<<"$answer" | head -n 1)
if [ "$state" != finished ] || [ -z "$accuracy" ]; then
  echo "smoke: the job is $state: $answer" >&2
  exit 1
fi
if [ "$workers" -gt 1 ]; then
  trained=$(sed -n 's/.*"result": *{//; s/.*"workers": *\([0-9]*\)[,}].*/\1/p' <<<"$answer" | head -n 1)
  compose exec -T web preflight watch --plain smoke | grep '^group' || true
  [ "$trained" = "$workers" ] || { echo "smoke: ${trained:-1} of $workers workers trained the job" >&2; exit 1; }
fi
echo "smoke: ok, test accuracy $accuracy by ${trained:-1} of $workers workers, $((SECONDS - started)) s after compose up"
