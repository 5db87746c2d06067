"""The sequential loops that this project makes itself, each a plain loop of TensorIR.

``writer`` is read first: every loop here is written with it. ``frame`` has the order of axes that
most share. Faces call these for the operators of model formats and for the functions of torch,
adjoints included, so that a function is the same loop wherever it is called from. Loops to learn
the form from are in ``tvm_scan.library``.
"""

from .affine import affine
from .cumulative import cumulative, logcumsumexp
from .delta import delta_rule
from .delta_adjoint import delta_adjoint
from .delta_forward import delta_walk
from .extremum import extremum, extremum_gradient
from .lfilter import lfilter
from .outer import outer_products
from .outer_gates import outer_gates
from .packed_states import states_of_sequences
from .selective import selective_forward
from .selective_adjoint import selective_backward_chunk
from .transpose import transpose

__all__ = [
    "affine",
    "cumulative",
    "delta_adjoint",
    "delta_rule",
    "delta_walk",
    "extremum",
    "extremum_gradient",
    "lfilter",
    "logcumsumexp",
    "outer_gates",
    "outer_products",
    "selective_backward_chunk",
    "selective_forward",
    "states_of_sequences",
    "transpose",
]
