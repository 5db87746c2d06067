"""What the drivers' own compilers make of a kernel."""

import numpy as np

from tests.devices.test_table import driver_of
from tvm_scan.schedules.launch.program import Kernel

#: Threads 0 to 7 multiply four rows by all before them; what follows only has to read something.
PREFIX_PRODUCTS = """
__kernel void prefix_products(__global const float* restrict x, __global float* restrict y) {
  __local float gates[32]; __local float rows[32]; __local float whole[8];
  __local float other[128]; __local float weights[16];
  float sum[1]; float product[1];
  int thread = convert_int(get_local_id(0));
  for (int chunk = 0; chunk < 2 + convert_int(get_group_id(0)); ++chunk) {
    if (thread < 32) { gates[thread] = x[thread]; rows[thread] = 1.0f; }
    other[thread] = 1.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 16) weights[thread] = gates[thread];
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 8) product[0] = 1.0f;
    for (int t = 0; t < 4; ++t) {
      if (thread < 8) {
        rows[t * 8 + thread] = rows[t * 8 + thread] * product[0];
        product[0] = product[0] * gates[t * 8 + thread];
      }
    }
    if (thread < 8) whole[thread] = product[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int t = 0; t < 4; ++t) {
      sum[0] = other[t * 32 + (thread & 31)];
      for (int j = 0; j < t; ++j)
        sum[0] = sum[0] + weights[t * 4 + j] * other[j * 32 + (thread & 31)];
      if (thread < 32) other[t * 32 + thread] = other[t * 32 + thread] + sum[0];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
  }
  if (thread < 32) y[thread] = rows[thread] + 0.0f * whole[thread & 7];
}
"""


def test_a_condition_on_threads_in_a_loop_between_barriers():
    """PoCL's optimiser forgets it: a loop of eight threads then runs for all of the block."""
    driver = driver_of("opencl")
    x = np.random.default_rng(0).random((4, 8), dtype="float32")
    y = np.zeros_like(x)
    buffers = [driver.buffer(array) for array in (x, y)]
    kernel = Kernel("prefix_products", PREFIX_PRODUCTS, ("buffer", "buffer"))
    driver.launch(kernel, buffers, [1, 1, 1], [128, 1, 1])
    got = np.frombuffer(driver.read(buffers[1], y.nbytes), "float32").reshape(y.shape)
    want = np.concatenate([np.ones((1, 8)), np.cumprod(x, 0)[:3]])
    np.testing.assert_allclose(got, want, rtol=1e-6)
