/* The selective scan with AVX-512 by hand: the 16 states of a channel are one vector.
 *
 * B and C are turned once to (length, states), so that a step reads its 16 states in one load.
 * The step sizes and gates of 16 steps are computed together; 4 channels advance side by side to
 * hide the latency of one another. Shapes as in tvm_scan.library.selective_scan, layout "bdl";
 * 16 states, a multiple of 4 channels and of 16 steps.
 */
#include <immintrin.h>
#include <stdint.h>

typedef __m512 vec;

static inline vec exp2_of(vec x) {
  const vec n = _mm512_roundscale_ps(x, 0);
  const vec r = _mm512_sub_ps(x, n);
  vec p = _mm512_set1_ps(0.00015453162945117818f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.0013390863364671202f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.00961808255727786f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.05550357114219078f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.24022650760568126f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(0.6931471880262288f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
  return _mm512_scalef_ps(p, n);
}

static inline vec exp_of(vec x) { return exp2_of(_mm512_mul_ps(x, _mm512_set1_ps(1.442695041f))); }

/* log(1 + e) for e in (0, 1]: 2 atanh(e / (2 + e)). */
static inline vec log1p_of(vec e) {
  const vec s = _mm512_div_ps(e, _mm512_add_ps(e, _mm512_set1_ps(2.0f)));
  const vec z = _mm512_mul_ps(s, s);
  vec p = _mm512_set1_ps(2.0f / 13);
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 11));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 9));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 7));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 5));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f / 3));
  p = _mm512_fmadd_ps(p, z, _mm512_set1_ps(2.0f));
  return _mm512_mul_ps(p, s);
}

static inline vec softplus_of(vec x) {
  const vec low = _mm512_sub_ps(_mm512_setzero_ps(), _mm512_abs_ps(x));
  return _mm512_add_ps(_mm512_max_ps(x, _mm512_setzero_ps()), log1p_of(exp_of(low)));
}

static inline vec silu_of(vec z) {
  const vec e = exp_of(_mm512_sub_ps(_mm512_setzero_ps(), z));
  return _mm512_div_ps(z, _mm512_add_ps(e, _mm512_set1_ps(1.0f)));
}

static inline vec load_f32(const float* p) { return _mm512_loadu_ps(p); }
static inline void store_f32(float* p, vec v) { _mm512_storeu_ps(p, v); }
static inline float one_f32(float v) { return v; }
static inline vec load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline float one_bf16(uint16_t v) {
  union { uint32_t bits; float value; } u = {(uint32_t)v << 16};
  return u.value;
}
static inline void store_bf16(uint16_t* p, vec v) {
  const __m512i bits = _mm512_castps_si512(v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  _mm256_storeu_si256((__m256i*)p, _mm512_cvtepi32_epi16(_mm512_srli_epi32(up, 16)));
}

#define SELECTIVE(NAME, T, LOAD, STORE, ONE)                                                     \
  void NAME(const T* u, const T* delta, const float* A, const T* B, const T* C, const float* D,  \
            const T* z, const float* bias, float* Bt, float* Ct, T* out, long batch,             \
            long channels, long length) {                                                        \
    _Pragma("omp parallel") {                                                                    \
      _Pragma("omp for collapse(2)")                                                             \
      for (long b = 0; b < batch; ++b)                                                           \
        for (long t = 0; t < length; ++t)                                                        \
          for (long n = 0; n < 16; ++n) {                                                        \
            Bt[(b * length + t) * 16 + n] = ONE(B[(b * 16 + n) * length + t]);                   \
            Ct[(b * length + t) * 16 + n] = ONE(C[(b * 16 + n) * length + t]);                   \
          }                                                                                      \
      _Pragma("omp for collapse(2)")                                                             \
      for (long b = 0; b < batch; ++b)                                                           \
        for (long d = 0; d < channels; d += 4) {                                                 \
          vec h[4], a[4];                                                                        \
          for (int k = 0; k < 4; ++k) {                                                          \
            h[k] = _mm512_setzero_ps();                                                          \
            a[k] = _mm512_mul_ps(_mm512_loadu_ps(A + (d + k) * 16), _mm512_set1_ps(1.442695041f)); \
          }                                                                                      \
          for (long t = 0; t < length; t += 16) {                                                \
            float dt[4][16], dtu[4][16], y[4][16];                                               \
            for (int k = 0; k < 4; ++k) {                                                        \
              const long at = (b * channels + d + k) * length + t;                               \
              const vec step = softplus_of(                                                      \
                  _mm512_add_ps(LOAD(delta + at), _mm512_set1_ps(bias[d + k])));                 \
              _mm512_storeu_ps(dt[k], step);                                                     \
              _mm512_storeu_ps(dtu[k], _mm512_mul_ps(step, LOAD(u + at)));                       \
            }                                                                                    \
            for (int i = 0; i < 16; ++i) {                                                       \
              const vec bt = _mm512_loadu_ps(Bt + (b * length + t + i) * 16);                    \
              const vec ct = _mm512_loadu_ps(Ct + (b * length + t + i) * 16);                    \
              for (int k = 0; k < 4; ++k) {                                                      \
                const vec gate = exp2_of(_mm512_mul_ps(a[k], _mm512_set1_ps(dt[k][i])));         \
                h[k] = _mm512_fmadd_ps(gate, h[k],                                               \
                                       _mm512_mul_ps(bt, _mm512_set1_ps(dtu[k][i])));            \
                y[k][i] = _mm512_reduce_add_ps(_mm512_mul_ps(h[k], ct));                         \
              }                                                                                  \
            }                                                                                    \
            for (int k = 0; k < 4; ++k) {                                                        \
              const long at = (b * channels + d + k) * length + t;                               \
              const vec sum = _mm512_fmadd_ps(_mm512_set1_ps(D[d + k]), LOAD(u + at),            \
                                              _mm512_loadu_ps(y[k]));                            \
              STORE(out + at, _mm512_mul_ps(sum, silu_of(LOAD(z + at))));                        \
            }                                                                                    \
          }                                                                                      \
        }                                                                                        \
    }                                                                                            \
  }

SELECTIVE(selective_f32, float, load_f32, store_f32, one_f32)
SELECTIVE(selective_bf16, uint16_t, load_bf16, store_bf16, one_bf16)
