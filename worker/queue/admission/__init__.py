"""Admission: function, arguments, signature and limits of a job from the queue."""
