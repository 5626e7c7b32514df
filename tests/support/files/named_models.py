"""Artifacts of finished jobs whose networks are one matrix, so that nothing has to be trained or exported."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from pydantic import JsonValue
from redis import Redis

from preflight.recognizer.onnx import FILLED, IMAGES, ONNX, PROBABILITIES
from training.artifacts.model_dir import save
from training.artifacts.onnx_child import OPSET

SIDE, CLASSES = 28, 10


def make_model(artifact_dir: Path, job_id: str, seed: int) -> str:
    """Write the artifact of a job, its ONNX file included; return the sha256 of its weights."""
    reads: dict[str, JsonValue] = {
        "shape": [1, SIDE, SIDE],
        "classes": CLASSES,
        "mean": 33.0,
        "std": 78.0,
        "filled": 20 / 28,
    }
    spec: dict[str, JsonValue] = {"model": "cnn", "dataset": "mnist"}
    facts: dict[str, JsonValue] = {"job_id": job_id, "spec": spec, "input": reads, "metrics": {"test_accuracy": 0.5}}
    saved = save(artifact_dir / job_id, [f"weights {seed}".encode()], facts)
    onnx.save(network(seed), saved.directory / ONNX)
    return saved.model_sha256


def finish_job(raw: Redis, artifact_dir: Path, job_id: str, seed: int) -> str:
    """Write a job's artifact and its state in Redis; return the sha256 of its weights."""
    raw.hset(f"rq:job:{job_id}", "status", "finished")
    return make_model(artifact_dir, job_id, seed)


def network(seed: int) -> onnx.ModelProto:
    """Return a network of one random matrix between pixels and classes."""
    weights = np.random.default_rng(seed).normal(0, 0.001, (SIDE * SIDE, CLASSES)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", [IMAGES], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Flatten", ["floats"], ["flat"]),
        helper.make_node("MatMul", ["flat", "weights"], ["logits"]),
        helper.make_node("Softmax", ["logits"], [PROBABILITIES], axis=1),
    ]
    graph = helper.make_graph(
        nodes, "network",
        [helper.make_tensor_value_info(IMAGES, TensorProto.UINT8, ["samples", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info(PROBABILITIES, TensorProto.FLOAT, ["samples", CLASSES])],
        [numpy_helper.from_array(weights, "weights")],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
    helper.set_model_props(model, {FILLED: str(20 / 28)})
    return model
