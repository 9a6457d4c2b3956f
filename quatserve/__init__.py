"""Deep quaternion networks: train them, fold them, serve them.

`training`, `export` and `service` are links to the directories at the top of a checkout; a wheel holds the
files themselves. Everything imports them by this one name.
"""

import os

# onnxruntime 1.29 and newer tells Microsoft about every process and session, unless this is set when it is
# first imported. ORT_DISABLE_TELEMETRY=0 in the environment lets it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
