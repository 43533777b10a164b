// Trial: a Whisper encoder on AVX-512 VNNI and bf16 products.
#include <immintrin.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>
#define INLINE inline __attribute__((always_inline))
namespace {
constexpr float LOG2E = 1.44269504f;

struct Pool {
  std::vector<std::thread> threads;
  std::atomic<uint32_t> round{0}; std::atomic<int> next{0}, busy{0}; std::atomic<bool> stop{false};
  int count = 0; const std::function<void(int)>* work = nullptr;
  explicit Pool(int n) { for (int i = 1; i < n; i++) threads.emplace_back([this] { serve(); }); }
  ~Pool() { stop = true; round++; wake(); for (auto& t : threads) t.join(); }
  void wake() { syscall(SYS_futex, &round, FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }
  void claim() { for (int i; (i = next.fetch_add(1)) < count;) (*work)(i); }
  void serve() {
    uint32_t seen = 0;
    for (;;) {
      for (int spin = 0; round.load(std::memory_order_acquire) == seen; spin++) {
        if (spin < 4000) _mm_pause();
        else syscall(SYS_futex, &round, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
      }
      seen = round.load(std::memory_order_acquire);
      if (stop) return;
      claim();
      busy.fetch_sub(1, std::memory_order_release);
    }
  }
  void run(int n, const std::function<void(int)>& f) {
    if (threads.empty()) { for (int i = 0; i < n; i++) f(i); return; }
    work = &f; count = n; next = 0; busy = (int)threads.size();
    round.fetch_add(1, std::memory_order_release); wake();
    claim();
    while (busy.load(std::memory_order_acquire)) _mm_pause();
  }
};

INLINE __m512 exp2_(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-126.f));
  __m512 n = _mm512_roundscale_ps(x, 0), r = _mm512_sub_ps(x, n);
  __m512 p = _mm512_set1_ps(1.3333558e-3f);
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(9.6181291e-3f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(5.5504109e-2f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(2.4022651e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(6.9314718e-1f));
  p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.f));
  return _mm512_scalef_ps(p, n);
}
// erf by Abramowitz and Stegun 7.1.26 (1.5e-7)
INLINE __m512 gelu(__m512 x) {
  __m512 z = _mm512_mul_ps(_mm512_abs_ps(x), _mm512_set1_ps(0.70710678f));
  __m512 t = _mm512_div_ps(_mm512_set1_ps(1.f), _mm512_fmadd_ps(z, _mm512_set1_ps(0.3275911f), _mm512_set1_ps(1.f)));
  __m512 p = _mm512_set1_ps(1.061405429f);
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-1.453152027f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(1.421413741f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(-0.284496736f));
  p = _mm512_fmadd_ps(p, t, _mm512_set1_ps(0.254829592f));
  p = _mm512_mul_ps(p, t);
  __m512 e = exp2_(_mm512_mul_ps(_mm512_mul_ps(z, z), _mm512_set1_ps(-LOG2E)));
  __m512 upper = _mm512_mul_ps(_mm512_mul_ps(p, e), _mm512_set1_ps(0.5f));  // 1 - Phi(|x|)
  __mmask16 neg = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ);
  __m512 phi = _mm512_mask_blend_ps(neg, _mm512_sub_ps(_mm512_set1_ps(1.f), upper), upper);
  return _mm512_mul_ps(x, phi);
}

struct Rounded { int8_t* q; float* scale; int32_t* sum; int K; };  // [M][K], [M][K/64]

INLINE void round64(const __m512 v[4], int8_t* q, float* scale, int32_t* sum) {
  __m512 most = _mm512_max_ps(_mm512_max_ps(_mm512_abs_ps(v[0]), _mm512_abs_ps(v[1])), _mm512_max_ps(_mm512_abs_ps(v[2]), _mm512_abs_ps(v[3])));
  float m = _mm512_reduce_max_ps(most);
  __m512 inv = _mm512_set1_ps(m > 0 ? 127.f / m : 0.f);
  __m512i total = _mm512_setzero_si512();
  for (int z = 0; z < 4; z++) {
    __m512i r = _mm512_cvtps_epi32(_mm512_mul_ps(v[z], inv));
    total = _mm512_add_epi32(total, r);
    _mm_storeu_si128((__m128i*)(q + 16 * z), _mm512_cvtepi32_epi8(r));
  }
  *scale = m / 127.f; *sum = -128 * _mm512_reduce_add_epi32(total);
}

void layer_norm_round(const float* x, int W, const float* g, const float* b, Rounded to, int row) {
  __m512 s = _mm512_setzero_ps(), s2 = s;
  for (int i = 0; i < W; i += 16) s = _mm512_add_ps(s, _mm512_loadu_ps(x + i));
  __m512 mean = _mm512_set1_ps(_mm512_reduce_add_ps(s) / W);
  for (int i = 0; i < W; i += 16) { __m512 d = _mm512_sub_ps(_mm512_loadu_ps(x + i), mean); s2 = _mm512_fmadd_ps(d, d, s2); }
  __m512 r = _mm512_set1_ps(1.f / std::sqrt(_mm512_reduce_add_ps(s2) / W + 1e-5f));
  int nb = W / 64;
  for (int blk = 0; blk < nb; blk++) {
    __m512 v[4];
    for (int z = 0; z < 4; z++) {
      int i = blk * 64 + z * 16;
      v[z] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_sub_ps(_mm512_loadu_ps(x + i), mean), r), _mm512_loadu_ps(g + i), _mm512_loadu_ps(b + i));
    }
    round64(v, to.q + (size_t)row * W + blk * 64, to.scale + (size_t)row * nb + blk, to.sum + (size_t)row * nb + blk);
  }
}
void round_row(const float* x, int W, Rounded to, int row) {
  int nb = W / 64;
  for (int blk = 0; blk < nb; blk++) {
    __m512 v[4]; for (int z = 0; z < 4; z++) v[z] = _mm512_loadu_ps(x + blk * 64 + z * 16);
    round64(v, to.q + (size_t)row * W + blk * 64, to.scale + (size_t)row * nb + blk, to.sum + (size_t)row * nb + blk);
  }
}

// Packed: tiles of 64 outputs: [K/4][64][4] u8, then 64 scales.
struct Packed { const uint8_t* w; const float* bias; int N, K; size_t tile() const { return (size_t)64 * K + 256; } };

enum End { STORE, ADD, GELU_ROUND };
template <int NC>
INLINE void block_s8(const uint8_t* w, const int8_t* a, size_t lda, __m512i acc[NC][4]) {
  for (int k = 0; k < 64; k += 4, w += 256) {
    __m512i x[4];
    for (int z = 0; z < 4; z++) x[z] = _mm512_loadu_si512(w + z * 64);
    for (int c = 0; c < NC; c++) {
      __m512i y = _mm512_set1_epi32(*(const int32_t*)(a + c * lda + k));
      for (int z = 0; z < 4; z++) DOT(acc[c][z], x[z], y);
    }
  }
}
template <int NC>
__attribute__((noinline)) void tile_s8(const uint8_t* w, int K, const int8_t* q, const float* sc, const int32_t* sum, float* __restrict out /*[NC][64]*/) {
  const int nb = K / 64;
  for (int i = 0; i < NC * 64; i += 16) _mm512_store_ps(out + i, _mm512_setzero_ps());
  for (int b = 0; b < nb; b++, w += 4096) {
    __m512i acc[NC][4];
    for (int c = 0; c < NC; c++) for (int z = 0; z < 4; z++) acc[c][z] = _mm512_set1_epi32(sum[c * nb + b]);
    block_s8<NC>(w, q + b * 64, K, acc);
    for (int c = 0; c < NC; c++)
      for (int z = 0; z < 4; z++) {
        float* o = out + c * 64 + z * 16;
        _mm512_store_ps(o, _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc[c][z]), _mm512_set1_ps(sc[c * nb + b]), _mm512_load_ps(o)));
      }
  }
  for (int c = 0; c < NC; c++) for (int z = 0; z < 4; z++) {
    float* o = out + c * 64 + z * 16;
    _mm512_store_ps(o, _mm512_mul_ps(_mm512_load_ps(o), _mm512_loadu_ps((const float*)w + z * 16)));
  }
}
template <int NC, int END>
INLINE void one(const Packed& p, const Rounded& in, int row, int n0, float* out, int ldo, const Rounded* to) {
  alignas(64) float t[NC * 64];
  const int nb = in.K / 64;
  tile_s8<NC>(p.w + (size_t)(n0 / 64) * p.tile(), in.K, in.q + (size_t)row * in.K, in.scale + (size_t)row * nb, in.sum + (size_t)row * nb, t);
  for (int c = 0; c < NC; c++) {
    __m512 v[4];
    for (int z = 0; z < 4; z++) {
      v[z] = _mm512_add_ps(_mm512_load_ps(t + c * 64 + z * 16), _mm512_loadu_ps(p.bias + n0 + z * 16));
      float* o = out + (size_t)(row + c) * ldo + n0 + z * 16;
      if constexpr (END == STORE) _mm512_storeu_ps(o, v[z]);
      if constexpr (END == ADD) _mm512_storeu_ps(o, _mm512_add_ps(_mm512_loadu_ps(o), v[z]));
      if constexpr (END == GELU_ROUND) v[z] = gelu(v[z]);
    }
    if constexpr (END == GELU_ROUND) {
      size_t at = (size_t)(row + c) * (to->K / 64) + n0 / 64;
      round64(v, to->q + (size_t)(row + c) * to->K + n0, to->scale + at, to->sum + at);
    }
  }
}
template <int END>
void matmul(Pool& pool, const Packed& p, const Rounded& in, int M, float* out, int ldo, const Rounded* to) {
  constexpr int MB = 252;  // tokens a claim: activations of 126 KB (K = 512) stay in L2
  int mb = (M + MB - 1) / MB, nt = p.N / 64, per = std::max(1, std::min(nt, 8)), ng = (nt + per - 1) / per;
  pool.run(mb * ng, [&](int i) {
    int m0 = i / ng * MB, m1 = std::min(M, m0 + MB), g = i % ng;
    for (int n = g * per; n < std::min(nt, (g + 1) * per); n++) {
      int m = m0;
      for (; m + 6 <= m1; m += 6) one<6, END>(p, in, m, n * 64, out, ldo, to);
      for (; m + 2 <= m1; m += 2) one<2, END>(p, in, m, n * 64, out, ldo, to);
      for (; m < m1; m++) one<1, END>(p, in, m, n * 64, out, ldo, to);
    }
  });
}

// out[NC][64] (+)= a[NC][K] (bf16, stride lda) x w[K/2][64][2] (bf16)
template <int NC>
INLINE void tile_bf16(const uint16_t* w, int K, const uint16_t* a, size_t lda, __m512 f[NC][4]) {
  for (int k = 0; k < K; k += 2, w += 128) {
    __m512bh x[4];
    for (int z = 0; z < 4; z++) x[z] = (__m512bh)_mm512_loadu_si512(w + z * 32);
    for (int c = 0; c < NC; c++) {
      __m512bh y = (__m512bh)_mm512_set1_epi32(*(const int32_t*)(a + c * lda + k));
      for (int z = 0; z < 4; z++) f[c][z] = _mm512_dpbf16_ps(f[c][z], x[z], y);
    }
  }
}
INLINE void store_bf16(uint16_t* to, __m512 v) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(v)); }

// Keys of a head: tiles of 64 positions [d/2][64][2]; values: [t/2][64 d][2]; both padded to 64 positions.
struct Attention {
  int T, H, TP; std::vector<uint16_t> q, k, v;
  Attention(int t, int h) : T(t), H(h), TP((t + 63) / 64 * 64), q((size_t)h * t * 64), k((size_t)h * TP * 64), v((size_t)h * TP * 64) {}
  void pack(const float* qkv, int ld, int h, int p0, int p1, float scale) {  // positions of a head
    int D = H * 64;
    const __m512 s = _mm512_set1_ps(scale * LOG2E);
    for (int t = p0; t < p1; t++) {
      const float* x = qkv + (size_t)t * ld + h * 64;
      alignas(64) uint16_t kk[64], vv[64];
      for (int i = 0; i < 64; i += 16) {
        if (t < T) store_bf16(&q[((size_t)h * T + t) * 64 + i], _mm512_mul_ps(_mm512_loadu_ps(x + i), s));
        store_bf16(kk + i, t < T ? _mm512_loadu_ps(x + D + i) : _mm512_setzero_ps());
        store_bf16(vv + i, t < T ? _mm512_loadu_ps(x + 2 * D + i) : _mm512_setzero_ps());
      }
      uint32_t* kt = (uint32_t*)(&k[((size_t)h * TP + t / 64 * 64) * 64]) + t % 64;
      for (int d = 0; d < 32; d++) kt[d * 64] = ((uint32_t*)kk)[d];
      uint16_t* vt = &v[((size_t)h * TP + t / 2 * 2) * 64] + t % 2;
      for (int d = 0; d < 64; d++) vt[2 * d] = vv[d];
    }
  }
  template <int NC>
  void attend(int h, int t0, float* out) const {  // NC queries
    constexpr int CH = 256;
    alignas(64) float s[NC][CH]; alignas(64) uint16_t p[NC][CH];
    __m512 acc[NC][4]; float m[NC], l[NC];
    alignas(64) float keep[NC][64];
    for (int c = 0; c < NC; c++) { m[c] = -INFINITY; l[c] = 0; memset(keep[c], 0, 256); }
    const uint16_t* qq = &q[((size_t)h * T + t0) * 64];
    for (int j = 0; j < TP; j += CH) {
      int e = std::min(CH, TP - j);
      for (int i = 0; i < e; i += 64) {
        __m512 f[NC][4];
        for (int c = 0; c < NC; c++) for (int z = 0; z < 4; z++) f[c][z] = _mm512_setzero_ps();
        tile_bf16<NC>(&k[((size_t)h * TP + j + i) * 64], 64, qq, 64, f);
        for (int c = 0; c < NC; c++) for (int z = 0; z < 4; z++) _mm512_store_ps(&s[c][i + z * 16], f[c][z]);
      }
      if (j + e > T) for (int c = 0; c < NC; c++) for (int i = T - j; i < e; i++) s[c][i] = -INFINITY;
      for (int c = 0; c < NC; c++) {
        __m512 x = _mm512_load_ps(s[c]);
        for (int i = 16; i < e; i += 16) x = _mm512_max_ps(x, _mm512_load_ps(s[c] + i));
        float most = std::max(m[c], _mm512_reduce_max_ps(x));
        float f = std::exp2(m[c] - most); m[c] = most;
        __m512 mm = _mm512_set1_ps(most), sum = _mm512_setzero_ps();
        for (int i = 0; i < e; i += 16) {
          __m512 y = exp2_(_mm512_sub_ps(_mm512_load_ps(s[c] + i), mm));
          sum = _mm512_add_ps(sum, y); store_bf16(p[c] + i, y);
        }
        l[c] = l[c] * f + _mm512_reduce_add_ps(sum);
        __m512 ff = _mm512_set1_ps(f);
        for (int z = 0; z < 4; z++) acc[c][z] = _mm512_mul_ps(_mm512_load_ps(keep[c] + z * 16), ff);
      }
      tile_bf16<NC>(&v[((size_t)h * TP + j) * 64], e, p[0], CH, acc);
      for (int c = 0; c < NC; c++) for (int z = 0; z < 4; z++) _mm512_store_ps(keep[c] + z * 16, acc[c][z]);
    }
    for (int c = 0; c < NC; c++) {
      __m512 r = _mm512_set1_ps(1.f / l[c]);
      for (int z = 0; z < 4; z++) _mm512_storeu_ps(out + (size_t)(t0 + c) * H * 64 + h * 64 + z * 16, _mm512_mul_ps(_mm512_load_ps(keep[c] + z * 16), r));
    }
  }
  void run(Pool& pool, const float* qkv, float* out) {
    int np = TP / 64;
    pool.run(H * np, [&](int i) { pack(qkv, 3 * H * 64, i / np, i % np * 64, (i % np + 1) * 64, 0.125f); });
    constexpr int QB = 60;
    int nq = (T + QB - 1) / QB;
    pool.run(H * nq, [&](int i) {
      int h = i / nq, t = i % nq * QB, e = std::min(T, t + QB);
      for (; t + 6 <= e; t += 6) attend<6>(h, t, out);
      for (; t < e; t++) attend<1>(h, t, out);
    });
  }
};
}  // namespace
double now() { timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + 1e-9 * t.tv_nsec; }

#include <cstdio>
extern "C" void attention_check(const float* qkv, int T, int H, float* out) { Pool pool(2); Attention a(T, H); a.run(pool, qkv, out); }
extern "C" void matmul_check(const float* x, int M, int K, const int8_t* w, const float* scale, const float* bias, int N, float* out) {
  Pool pool(2);
  std::vector<uint8_t> pk((size_t)(N / 64) * (64 * K + 256));
  for (int t = 0; t < N / 64; t++) {
    uint8_t* o = pk.data() + (size_t)t * (64 * K + 256);
    for (int k = 0; k < K; k++) for (int n = 0; n < 64; n++) o[k / 4 * 256 + n * 4 + k % 4] = (uint8_t)(w[(size_t)(t * 64 + n) * K + k] + 128);
    memcpy(o + 64 * K, scale + t * 64, 256);
  }
  std::vector<int8_t> q((size_t)M * K); std::vector<float> sc(M * K / 64); std::vector<int32_t> sm(M * K / 64);
  Rounded r{q.data(), sc.data(), sm.data(), K};
  for (int m = 0; m < M; m++) round_row(x + (size_t)m * K, K, r, m);
  matmul<STORE>(pool, {pk.data(), bias, N, K}, r, M, out, N, nullptr);
}
int main(int argc, char** argv) {
  int D = atoi(argv[1]), H = D / 64, L = atoi(argv[2]), T = 1500, threads = atoi(argv[3]);
  Pool pool(threads);
  auto pk = [&](int N, int K) { auto* w = (uint8_t*)aligned_alloc(64, (size_t)N * K + N * 4 + 4096); for (size_t i = 0; i < (size_t)N * K; i++) w[i] = rand() & 255; for (int t = 0; t < N / 64; t++) for (int i = 0; i < 64; i++) ((float*)(w + (size_t)t * (64 * K + 256) + 64 * K))[i] = 1e-3f / 12; auto* b = (float*)calloc(N, 4); return Packed{w, b, N, K}; };
  auto rounded = [&](int K) { return Rounded{(int8_t*)aligned_alloc(64, (size_t)1536 * K), (float*)aligned_alloc(64, 1536 * K / 16), (int32_t*)aligned_alloc(64, 1536 * K / 16), K}; };
  std::vector<Packed> W; for (int l = 0; l < L; l++) { W.push_back(pk(3 * D, D)); W.push_back(pk(D, D)); W.push_back(pk(4 * D, D)); W.push_back(pk(D, 4 * D)); W.push_back(pk(2 * D, D)); }
  std::vector<float> x((size_t)T * D), qkv((size_t)T * 3 * D), mixed((size_t)T * D), g(D, 1.f), b(D, 0.f);
  for (auto& v : x) v = (rand() & 1023) / 512.f - 1;
  Rounded r1 = rounded(D), r4 = rounded(4 * D); Attention at(T, H);
  for (int rep = 0; rep < 6; rep++) {
    double t0 = now(), ta = 0, tm[5] = {}, tn = 0, t;
    auto norm = [&] { t = now(); pool.run((T + 31) / 32, [&](int i) { for (int m = i * 32; m < std::min(T, i * 32 + 32); m++) layer_norm_round(&x[(size_t)m * D], D, g.data(), b.data(), r1, m); }); tn += now() - t; };
    for (int l = 0; l < L; l++) {
      norm();
      t = now(); matmul<STORE>(pool, W[5 * l], r1, T, qkv.data(), 3 * D, nullptr); tm[0] += now() - t;
      t = now(); at.run(pool, qkv.data(), mixed.data()); ta += now() - t;
      t = now(); pool.run((T + 31) / 32, [&](int i) { for (int m = i * 32; m < std::min(T, i * 32 + 32); m++) round_row(&mixed[(size_t)m * D], D, r1, m); }); tn += now() - t;
      t = now(); matmul<ADD>(pool, W[5 * l + 1], r1, T, x.data(), D, nullptr); tm[1] += now() - t;
      norm();
      t = now(); matmul<GELU_ROUND>(pool, W[5 * l + 2], r1, T, nullptr, 0, &r4); tm[2] += now() - t;
      t = now(); matmul<ADD>(pool, W[5 * l + 3], r4, T, x.data(), D, nullptr); tm[3] += now() - t;
    }
    norm();
    for (int l = 0; l < L; l++) { t = now(); matmul<STORE>(pool, W[5 * l + 4], r1, T, qkv.data(), 2 * D, nullptr); tm[4] += now() - t; }
    double all = now() - t0; double mac = (double)T * D * D * L;
    printf("%.1f ms: attention %.1f (%.2f TF) norms %.1f qkv %.1f out %.1f up %.1f down %.1f cross %.1f (%.2f TOPS)\n", all * 1e3, ta * 1e3, 4.0 * T * T * D * L / ta * 1e-12, tn * 1e3, tm[0] * 1e3, tm[1] * 1e3, tm[2] * 1e3, tm[3] * 1e3, tm[4] * 1e3, 2 * mac * 14 / (tm[0] + tm[1] + tm[2] + tm[3] + tm[4]) * 1e-12);
  }
}
