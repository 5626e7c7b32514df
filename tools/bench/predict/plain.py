"""A plain inference service, which `tools.bench.predict` runs next to ours: FastAPI, Pillow and ONNX Runtime.

python -m tools.bench.predict.plain MODEL.onnx PORT h11|httptools
"""

import sys
from io import BytesIO

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request
from PIL import Image

app, options = FastAPI(), onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])


@app.post("/predict")
async def predict(request: Request) -> dict[str, object]:
    """Return class and probabilities of the picture in the body."""
    image = np.asarray(Image.open(BytesIO(await request.body())).convert("L"))
    (probabilities,) = session.run(None, {"images": image[None, None]})[0]
    return {"class": int(probabilities.argmax()), "probabilities": probabilities.tolist()}


uvicorn.run(app, port=int(sys.argv[2]), http=sys.argv[3], log_level="warning", access_log=False)
