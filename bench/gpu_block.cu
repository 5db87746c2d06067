// CUB's block scan as a user of it writes a scan of rows: a block per row, tiles one after another,
// loads and stores exchanged in a warp's shared memory, the carry by a prefix callback. Compiled by
// bench.machine_code, which counts its instructions; whole tiles only.
#include <cub/block/block_load.cuh>
#include <cub/block/block_scan.cuh>
#include <cub/block/block_store.cuh>

namespace {

constexpr int kThreads = 128, kItems = 16, kTile = kThreads * kItems;

using Load = cub::BlockLoad<float, kThreads, kItems, cub::BLOCK_LOAD_WARP_TRANSPOSE>;
using Store = cub::BlockStore<float, kThreads, kItems, cub::BLOCK_STORE_WARP_TRANSPOSE>;

struct Combine {
  __device__ float2 operator()(float2 f, float2 g) const {
    return make_float2(g.x * f.x, g.x * f.y + g.y);
  }
};

struct Plus {
  __device__ float operator()(float f, float g) const { return f + g; }
};

template <class Value, class Operator>
struct Carry {
  Value carry;
  __device__ Value operator()(Value tile) {
    Value before = carry;
    carry = Operator()(carry, tile);
    return before;
  }
};

}  // namespace

extern "C" __global__ void __launch_bounds__(kThreads)
    block_affine(const float* a, const float* x, float* h, size_t length) {
  using Scan = cub::BlockScan<float2, kThreads>;
  __shared__ union {
    Load::TempStorage load;
    Store::TempStorage store;
    Scan::TempStorage scan;
  } shared;
  Carry<float2, Combine> carry{make_float2(1, 0)};
  const size_t row = blockIdx.x * length;
  for (size_t first = 0; first < length; first += kTile) {
    float gates[kItems], values[kItems];
    float2 steps[kItems];
    Load(shared.load).Load(a + row + first, gates);
    __syncthreads();
    Load(shared.load).Load(x + row + first, values);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) steps[i] = make_float2(gates[i], values[i]);
    Scan(shared.scan).InclusiveScan(steps, steps, Combine(), carry);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) values[i] = steps[i].y;
    Store(shared.store).Store(h + row + first, values);
    __syncthreads();
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    block_sum(const float* x, float* y, size_t length) {
  using Scan = cub::BlockScan<float, kThreads>;
  __shared__ union {
    Load::TempStorage load;
    Store::TempStorage store;
    Scan::TempStorage scan;
  } shared;
  Carry<float, Plus> carry{0};
  const size_t row = blockIdx.x * length;
  for (size_t first = 0; first < length; first += kTile) {
    float values[kItems];
    Load(shared.load).Load(x + row + first, values);
    __syncthreads();
    Scan(shared.scan).InclusiveScan(values, values, Plus(), carry);
    __syncthreads();
    Store(shared.store).Store(y + row + first, values);
    __syncthreads();
  }
}
