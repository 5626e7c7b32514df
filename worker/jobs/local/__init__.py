"""Training, prediction and ONNX export without a queue."""
