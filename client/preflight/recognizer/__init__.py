"""Trained models that recognize pictures, without Redis, and without torch where there is an ONNX file."""
