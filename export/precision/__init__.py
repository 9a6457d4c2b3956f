"""Files of lower precision: fp16 and INT8."""
