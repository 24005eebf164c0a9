"""The whole decision as one ONNX file (export.py); needs the extra `isonomy[onnx]`."""

from isonomy.company.fair.onnx_export.export import export, onnx_bytes
from isonomy.company.fair.onnx_export.schema import Schema, inputs_of

__all__ = ["Schema", "export", "inputs_of", "onnx_bytes"]
