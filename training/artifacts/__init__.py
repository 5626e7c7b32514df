"""Trained models: files, metrics, prediction and ONNX."""
