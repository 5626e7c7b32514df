"""Stages of a job: data set, plan, training and publishing, each supervised from this process."""
