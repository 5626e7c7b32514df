// The settings of a job by what they are about, and their names where the service's are no words.

/** Heading -> fields; what a newer service has besides is under "Others". */
export const GROUPS = {
  Training: [
    "epochs", "batch_size", "optimizer", "learning_rate", "schedule", "warmup", "step_epochs", "step_factor", "momentum",
    "weight_decay", "gradient_clip", "label_smoothing", "patience", "metric", "max_steps",
  ],
  Samples: ["train_samples", "validation_samples", "epoch_samples", "class_weights", "sampler"],
  Augmentation: ["augmentation"],
  "Start, name and repetition": ["init_from", "job_id", "seed", "deterministic"],
  "Workers and speed": [
    "workers", "calibrate", "force_calibration", "calibration_seconds", "calibration_samples", "calibration_knobs",
  ],
  "A plan of your own": ["plan"],
  "What it leaves": ["onnx", "trace", "profile"],
};

const NAMES = {
  job_id: "Name of this job",
  init_from: "Start from a trained model",
  epoch_samples: "Samples per epoch",
  train_samples: "Training samples",
  validation_samples: "Validation samples",
  max_steps: "Steps at most",
  patience: "Stop early after epochs without gain",
  metric: "Best epoch by",
  step_epochs: "Epochs between steps of the rate",
  step_factor: "Factor of each step",
  deterministic: "Same weights in every run",
  workers: "Workers together",
  calibrate: "Look for a faster plan",
  force_calibration: "Measure again",
  calibration_seconds: "Seconds to calibrate",
  calibration_samples: "Steps of each plan",
  calibration_knobs: "What may be changed",
  onnx: "ONNX file",
  trace: "Trace of a few steps",
  profile: "Profile of a step",
  dataset: "Data set",
};

/** What a field means, where the service's words are for programs. */
const HINTS = { job_id: "empty: a generated one" };

/** What a field means, as people say it. */
export function meaningOf(path, description) {
  return HINTS[path] ?? description;
}

/** The name of a field as people write it. */
export function nameOf(path) {
  const words = path.split(".").at(-1).replaceAll("_", " ");
  return NAMES[path] ?? words.slice(0, 1).toUpperCase() + words.slice(1);
}
