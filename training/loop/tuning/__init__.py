"""Tuning of a running plan: threads by speed, the micro-batch by memory."""
