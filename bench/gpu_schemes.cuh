// Our own kernels after the schemes of published ones, for machines that have none of these: they
// are no measurement of the packages. float32, no vectors of odd lengths, no templates, so that the
// tests' simulated device takes this text too.
#pragma once

// What a thread's steps do to a state: f, then g.
static __device__ float2 then(float2 f, float2 g) { return make_float2(g.x * f.x, g.x * f.y + g.y); }

// Four elements; zeros behind the end.
static __device__ float4 four(const float* from, bool inside) {
  return inside ? *(const float4*)from : make_float4(0, 0, 0, 0);
}

static __device__ float2 from_below(float2 value, int distance) {
  float2 found;
  found.x = __shfl_up_sync(0xffffffffu, value.x, distance);
  found.y = __shfl_up_sync(0xffffffffu, value.y, distance);
  return found;
}

// The state before a thread's steps, from the state before the block's. carry becomes that after
// the block's; warps has one place for every warp. Two barriers, which order the calls as well.
static __device__ float state_before(float2 fold, float* carry, float2* warps) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int distance = 1; distance < 32; distance *= 2) {
    float2 below = from_below(fold, distance);
    if (lane >= distance) fold = then(below, fold);
  }
  if (lane == 31) warps[warp] = fold;
  float2 below = from_below(fold, 1);
  __syncthreads();
  float state = *carry;
  for (int w = 0; w < warp; ++w) state = warps[w].x * state + warps[w].y;
  const float mine = lane ? below.x * state + below.y : state;
  __syncthreads();
  if (threadIdx.x == blockDim.x - 1) *carry = fold.x * state + fold.y;
  return mine;
}

#define STEPS 4
#define CHANNEL_STEPS 16

// Affine, as accelerated-scan works: a block per row, four steps a thread, shuffles in a warp, one
// element per warp in shared memory, chunks one after another. The length is a multiple of 4.
extern "C" __global__ void __launch_bounds__(1024)
    block_per_row(const float* a, const float* x, float* h, int length) {
  __shared__ float2 warps[32];
  __shared__ float carry;
  const size_t row = (size_t)blockIdx.x * length;
  if (threadIdx.x == 0) carry = 0;
  __syncthreads();
  for (int start = 0; start < length; start += (int)blockDim.x * STEPS) {
    const int at = start + (int)threadIdx.x * STEPS;
    float4 gates = make_float4(1, 1, 1, 1), values = make_float4(0, 0, 0, 0);
    if (at < length) {
      gates = *(const float4*)(a + row + at);
      values = *(const float4*)(x + row + at);
    }
    float2 fold = make_float2(gates.x, values.x);
    fold = then(fold, make_float2(gates.y, values.y));
    fold = then(fold, make_float2(gates.z, values.z));
    fold = then(fold, make_float2(gates.w, values.w));
    const float before = state_before(fold, &carry, warps);
    values.x = gates.x * before + values.x;
    values.y = gates.y * values.x + values.y;
    values.z = gates.z * values.y + values.z;
    values.w = gates.w * values.z + values.w;
    if (at < length) *(float4*)(h + row + at) = values;
  }
}

// Selective scan, as mamba-ssm's forward works: a block per channel, 16 steps a thread, for every
// state a scan over the block with the state of the tile before in shared memory. A multiple of 4.
extern "C" __global__ void __launch_bounds__(128)
    block_per_channel(const float* u, const float* delta, const float* A, const float* B,
                      const float* C, const float* D, const float* z, const float* bias, float* out,
                      int dim, int length, int states) {
  __shared__ float2 warps[4];
  __shared__ float carry[256];
  const int channel = (int)blockIdx.x % dim, batch = (int)blockIdx.x / dim;
  const size_t row = (size_t)blockIdx.x * length;
  for (int n = threadIdx.x; n < states; n += blockDim.x) carry[n] = 0;
  __syncthreads();
  for (int start = 0; start < length; start += (int)blockDim.x * CHANNEL_STEPS) {
    const int first = start + (int)threadIdx.x * CHANNEL_STEPS;
    float step[CHANNEL_STEPS], input[CHANNEL_STEPS], y[CHANNEL_STEPS];
#pragma unroll
    for (int k = 0; k < CHANNEL_STEPS; k += 4) {
      const bool inside = first + k < length;
      const float4 now = four(u + row + first + k, inside);
      const float4 wait = four(delta + row + first + k, inside);
      const float inputs[4] = {now.x, now.y, now.z, now.w};
      const float waits[4] = {wait.x, wait.y, wait.z, wait.w};
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float raw = waits[j] + bias[channel];
        const float soft = raw <= 20.0f ? log1pf(expf(raw)) : raw;
        step[k + j] = inside ? soft : 0.0f;  // a step of nothing keeps the state
        input[k + j] = step[k + j] * inputs[j];
        y[k + j] = D[channel] * inputs[j];
      }
    }
    for (int n = 0; n < states; ++n) {
      const float rate = A[channel * states + n] * 1.4426950408889634f;
      const size_t shared = ((size_t)batch * states + n) * length;
      float gate[CHANNEL_STEPS], value[CHANNEL_STEPS];
      float2 fold = make_float2(1, 0);
#pragma unroll
      for (int k = 0; k < CHANNEL_STEPS; k += 4) {
        const float4 now = four(B + shared + first + k, first + k < length);
        const float weights[4] = {now.x, now.y, now.z, now.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          gate[k + j] = exp2f(step[k + j] * rate);
          value[k + j] = input[k + j] * weights[j];
          fold = then(fold, make_float2(gate[k + j], value[k + j]));
        }
      }
      float state = state_before(fold, carry + n, warps);
#pragma unroll
      for (int k = 0; k < CHANNEL_STEPS; k += 4) {
        const float4 now = four(C + shared + first + k, first + k < length);
        const float weights[4] = {now.x, now.y, now.z, now.w};
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          state = gate[k + j] * state + value[k + j];
          y[k + j] += state * weights[j];
        }
      }
    }
#pragma unroll
    for (int k = 0; k < CHANNEL_STEPS; k += 4) {
      if (first + k >= length) continue;
      const float4 gates = *(const float4*)(z + row + first + k);
      float4 result;
      result.x = y[k] * gates.x / (1.0f + expf(-gates.x));
      result.y = y[k + 1] * gates.y / (1.0f + expf(-gates.y));
      result.z = y[k + 2] * gates.z / (1.0f + expf(-gates.z));
      result.w = y[k + 3] * gates.w / (1.0f + expf(-gates.w));
      *(float4*)(out + row + first + k) = result;
    }
  }
}

#define KEYS 64

// RWKV-6, as its published kernel works: a block per head, a thread per column with the state in
// registers, and what the columns share in shared memory, two barriers a step.
extern "C" __global__ void __launch_bounds__(64)
    block_per_head(const float* r, const float* k, const float* v, const float* w, const float* u,
                   float* y, int length) {
  __shared__ float rs[KEYS], ks[KEYS], ws[KEYS], us[KEYS];
  const int column = threadIdx.x;
  float state[KEYS];
#pragma unroll
  for (int j = 0; j < KEYS; ++j) state[j] = 0;
  us[column] = u[(size_t)blockIdx.x * KEYS + column];
  for (int t = 0; t < length; ++t) {
    const size_t at = ((size_t)blockIdx.x * length + t) * KEYS + column;
    __syncthreads();
    rs[column] = r[at];
    ks[column] = k[at];
    ws[column] = w[at];
    __syncthreads();
    const float value = v[at];
    float sum = 0;
#pragma unroll
    for (int j = 0; j < KEYS; ++j) {
      const float outer = ks[j] * value;
      sum += rs[j] * (state[j] + us[j] * outer);
      state[j] = ws[j] * state[j] + outer;
    }
    y[at] = sum;
  }
}

// Affine by one thread per row, one step after another.
extern "C" __global__ void __launch_bounds__(128)
    thread_per_row(const float* a, const float* x, float* h, int rows, int length) {
  const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (row >= rows) return;
  float state = 0;
  for (size_t i = (size_t)row * length, end = i + length; i < end; ++i)
    h[i] = state = a[i] * state + x[i];
}
