// mamba-ssm's published forward kernel, from its own source, without PyTorch: see gpu_headers.
// Real weights, variable B and C of one group, D, gate and softplus, as selective_scan_fn runs it:
// it stores y before the gate as well, and the state at the end of every 2048 steps.
#include "gpu_timing.cuh"

#include "selective_scan_fwd_kernel.cuh"

namespace {

template <class From>
__global__ void widen(const From* from, float* to, size_t count) {
  size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < count) to[i] = (float)from[i];
}

template <class T, int kThreads, int kItems, bool kEven>
void launch(SSMParamsBase params) {
  using Traits = Selective_Scan_fwd_kernel_traits<kThreads, kItems, 1, kEven, true, true, true, T,
                                                  float>;
  constexpr int kShared = Traits::kSmemSize + MAX_DSTATE * sizeof(typename Traits::scan_t);
  auto kernel = &selective_scan_fwd_kernel<Traits>;
  if (kShared >= 48 * 1024)
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  kernel<<<dim3(params.batch, params.dim), kThreads, kShared>>>(params);
}

// The sizes that selective_scan_fwd_cuda chooses.
template <class T>
void run(SSMParamsBase params) {
  const int length = params.seqlen;
  const bool even = length % (length <= 512 ? 512 : length <= 1024 ? 1024 : 2048) == 0;
  if (length <= 512)
    even ? launch<T, 32, 16, true>(params) : launch<T, 32, 16, false>(params);
  else if (length <= 1024)
    even ? launch<T, 64, 16, true>(params) : launch<T, 64, 16, false>(params);
  else
    even ? launch<T, 128, 16, true>(params) : launch<T, 128, 16, false>(params);
}

template <class T>
int selective(T* u, T* delta, T* A, T* B, T* C, T* D, T* z, T* bias, T* out, size_t batch,
              size_t dim, size_t length, size_t states, int repeat, float* ms) {
  if (length <= 256) return (int)cudaErrorInvalidValue;  // of sizes that are not built here
  SSMParamsBase p{};
  p.batch = batch, p.dim = dim, p.seqlen = length, p.dstate = states, p.n_groups = 1;
  p.n_chunks = (length + 2047) / 2048, p.dim_ngroups_ratio = dim;
  p.is_variable_B = p.is_variable_C = p.delta_softplus = true;
  p.A_d_stride = states, p.A_dstate_stride = 1;
  p.B_batch_stride = p.B_group_stride = p.C_batch_stride = p.C_group_stride = states * length;
  p.B_dstate_stride = p.C_dstate_stride = length;
  p.u_batch_stride = p.delta_batch_stride = p.z_batch_stride = dim * length;
  p.out_batch_stride = p.out_z_batch_stride = dim * length;
  p.u_d_stride = p.delta_d_stride = p.z_d_stride = p.out_d_stride = p.out_z_d_stride = length;
  float* weights = nullptr;
  float2* ends = nullptr;
  T* before = nullptr;
  const size_t count = dim * states + 2 * dim;
  CHECK(cudaMalloc(&weights, count * sizeof(float)));
  CHECK(cudaMalloc(&before, batch * dim * length * sizeof(T)));
  CHECK(cudaMalloc((void**)&ends, batch * dim * p.n_chunks * states * sizeof(float2)));
  widen<<<(dim * states + 255) / 256, 256>>>(A, weights, dim * states);
  widen<<<(dim + 255) / 256, 256>>>(D, weights + dim * states, dim);
  widen<<<(dim + 255) / 256, 256>>>(bias, weights + dim * states + dim, dim);
  p.A_ptr = weights, p.D_ptr = weights + dim * states;
  p.delta_bias_ptr = weights + dim * states + dim;
  p.B_ptr = B, p.C_ptr = C, p.u_ptr = u, p.delta_ptr = delta, p.z_ptr = z;
  p.out_ptr = before, p.out_z_ptr = out, p.x_ptr = ends;
  int status = timed([&] { run<T>(p); }, repeat, ms);
  cudaFree(weights), cudaFree(before), cudaFree(ends);
  return status;
}

}  // namespace

extern "C" int peer_mamba_float32(void* u, void* delta, void* A, void* B, void* C, void* D,
                                  void* z, void* bias, void* out, size_t batch, size_t dim,
                                  size_t length, size_t states, int repeat, float* ms) {
  return selective((float*)u, (float*)delta, (float*)A, (float*)B, (float*)C, (float*)D, (float*)z,
                   (float*)bias, (float*)out, batch, dim, length, states, repeat, ms);
}

extern "C" int peer_mamba_bfloat16(void* u, void* delta, void* A, void* B, void* C, void* D,
                                   void* z, void* bias, void* out, size_t batch, size_t dim,
                                   size_t length, size_t states, int repeat, float* ms) {
  using T = __nv_bfloat16;
  return selective((T*)u, (T*)delta, (T*)A, (T*)B, (T*)C, (T*)D, (T*)z, (T*)bias, (T*)out, batch,
                   dim, length, states, repeat, ms);
}
