# One image, the role by its command: `worker` unless told otherwise, `serve` for the page, any other of `preflight`.
#   docker build -t preflight .
# Stages, from what changes least to what changes most; a change of code rebuilds the last two small layers only.

ARG BASE_IMAGE=python:3.11-slim-bookworm

# What to install, cut out of both pyproject.toml, so that an edit elsewhere in it does not reinstall torch.
FROM ${BASE_IMAGE} AS requirements
# Optional parts of this project, as pyproject.toml names them; `onnx`, `mlflow` and `parquet` (pyarrow, some 150 MB) are
# left to those who want them.
ARG EXTRAS="train report web s3"
WORKDIR /requirements
# The * lets the build go on, unpinned, where there is no constraints.txt.
COPY pyproject.toml constraints.txt* ./
COPY client/pyproject.toml client/
RUN python -c "import os, tomllib; \
    pyproject, client = (tomllib.load(open(path + 'pyproject.toml', 'rb')) for path in ('', 'client/')); \
    project = pyproject['project']; \
    extras = [project['optional-dependencies'][name] for name in os.environ['EXTRAS'].split()]; \
    wanted = sum(extras, project['dependencies'] + client['project']['dependencies']); \
    print(*(line for line in wanted if not line.startswith(('torch', 'preflight-client'))), sep='\n', file=open('base.txt', 'w')); \
    print(*pyproject['build-system']['requires'], sep='\n', file=open('build.txt', 'w'))" \
 && touch constraints.txt \
 && { grep -E '^torch(vision)? *==' constraints.txt >torch-constraints.txt || true; } \
 && { grep -vE '^torch(vision)? *==' constraints.txt >base-constraints.txt || true; }

# Everything but this project, in one virtual environment.
FROM ${BASE_IMAGE} AS dependencies
RUN python -m venv --without-pip /venv
# PyTorch's own index has builds without CUDA; PyPI's bring gigabytes of it. Empty: pip's default index.
ARG TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu
# Versions named here win over constraints.txt. torchvision only downloads data sets: where they are mounted,
# TORCH_PACKAGES=torch is enough.
ARG TORCH_PACKAGES="torch torchvision"
COPY --from=requirements /requirements/torch-constraints.txt /requirements/
RUN case "$TORCH_PACKAGES" in *[=\<\>]*) : >/requirements/torch-constraints.txt ;; esac \
 && pip --python /venv/bin/python install --no-cache-dir --no-deps --retries 2 --timeout 30 \
      ${TORCH_INDEX_URL:+--index-url "$TORCH_INDEX_URL"} -c /requirements/torch-constraints.txt $TORCH_PACKAGES \
 || { echo "$TORCH_PACKAGES could not be installed from ${TORCH_INDEX_URL:-the default index};" \
           "name another one with --build-arg TORCH_INDEX_URL=URL (empty: pip's default index)" >&2; exit 1; }
COPY --from=requirements /requirements/base.txt /requirements/base-constraints.txt /requirements/
# $TORCH_PACKAGES again: they are there, but what they need is not yet.
RUN pip --python /venv/bin/python install --no-cache-dir -r /requirements/base.txt \
      -c /requirements/base-constraints.txt $TORCH_PACKAGES
# A fifth of torch is its own tests and C++ headers. torch_shm_manager must stay: `import torch` looks for it.
# Others bring their tests, too, and botocore a description of each service of AWS.
RUN cd "$(/venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')" \
 && rm -rf torch/test torch/include torch/share \
 && find torch/bin -type f ! -name torch_shm_manager -delete \
 && find . -type d -name tests -prune -exec rm -rf {} + \
 && { [ ! -d botocore ] || find botocore/data -mindepth 1 -maxdepth 1 -type d \
      ! -name s3 ! -name sts ! -name 'sso*' -exec rm -rf {} +; } \
 && /venv/bin/python -Pc 'import torch, numpy, torch.fx.experimental.symbolic_shapes'

# This project's two wheels.
FROM ${BASE_IMAGE} AS wheel
WORKDIR /source
COPY --from=requirements /requirements/build.txt /requirements/base-constraints.txt /requirements/
RUN pip install --no-cache-dir -r /requirements/build.txt -c /requirements/base-constraints.txt
COPY pyproject.toml README.md LICENSE ./
COPY calibration calibration
COPY client client
COPY docs/how-to/runbook.md docs/how-to/
COPY training training
COPY worker worker
RUN pip wheel --no-deps --no-build-isolation --wheel-dir /wheel ./client .

# The wheels' own files alone, laid out as they belong into /venv.
FROM dependencies AS package
COPY --from=wheel /wheel /wheel
RUN pip --python /venv/bin/python install --no-cache-dir --no-deps --no-index --root /package /wheel/*.whl

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="preflight" \
      org.opencontainers.image.description="Trains digit recognizers on CPU from a Redis queue, as fast as the container allows." \
      org.opencontainers.image.licenses="MIT"
# Another allocator, which calibration tries where it finds it. Empty: none.
ARG ALLOCATOR=libtcmalloc-minimal4
RUN [ -z "$ALLOCATOR" ] || { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$ALLOCATOR" \
 && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/*; }
# No VOLUME: Railway refuses a Dockerfile that declares one. A named volume mounted here takes over the owner.
# The official image comes without bytecode of the standard library, and this user could not keep any.
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /data --shell /usr/sbin/nologin preflight \
 && install -d -o 10001 -g 10001 /run/preflight /run/services /run/services/redis /run/services/worker \
      /run/services/web /run/services/producer /data /data/datasets /data/uploads /data/artifacts /data/cache /data/state \
 && python -m compileall -q -x '/(test|tests|idlelib|lib2to3|ensurepip|site-packages)/' "$(python -c 'import os; print(os.path.dirname(os.__file__))')"
COPY --from=dependencies /venv /venv
COPY --from=package /package/venv /venv
ENV PATH=/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PREFLIGHT_DATA_DIR=/data/datasets \
    PREFLIGHT_ARTIFACT_DIR=/data/artifacts \
    PREFLIGHT_CACHE_DIR=/data/cache \
    PREFLIGHT_STATE_DIR=/data/state
WORKDIR /data
USER 10001:10001
EXPOSE 8000
STOPSIGNAL SIGTERM
# A look takes a Python's start, so it comes seldom; orchestrators that have probes of their own ask the same.
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=2 CMD ["preflight", "health"]
ENTRYPOINT ["preflight"]
CMD ["worker"]
