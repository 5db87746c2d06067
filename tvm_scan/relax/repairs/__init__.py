"""Repairs of TVM 0.27: each file says what is broken there, and goes when it no longer is.

Read ``torch_importer`` first (an importer whose errors name the operator), then the converters that
it is given, by what they are about: ``torch_dtypes``, ``torch_elementwise``, ``torch_products``,
``torch_convolutions`` and ``torch_parts``, which share ``torch_casts``. ``onnx_extents`` is for
ONNX. ``dtypes`` rewrites operators that are lowered and then have no code; ``unlowered`` names
those that are not lowered.
"""
