// Declarations that Inductor writes into a package, after its own `extern`: see `SHIMS` in packed.py.
extern "C" {
extern "C++" {
#include <omp.h>
}

struct kvcast_lent {
  int count;
  void (*on_each)(void (*)(void*), void*);
};
struct kvcast_matrix;
struct kvcast_operators {
  int (*multiply)(const kvcast_matrix*, const float*, int64_t, int64_t, float*, const kvcast_lent*);
  int (*look_up)(const kvcast_matrix*, const int64_t*, int64_t, float*);
  int (*mix)(const kvcast_matrix*, const kvcast_matrix*, const float*, int64_t, int64_t,
             const float*, int64_t, int64_t, float*, const kvcast_lent*);
};
struct kvcast_matrix {
  int64_t version;
  const kvcast_operators* call;
  const void* with;
  int64_t format, outputs, inputs, count;
  const void* tiles;
};

static void kvcast_on_each(void (*work)(void*), void* context) {
#pragma omp parallel
  work(context);
}

static kvcast_lent kvcast_threads() { return {omp_get_max_threads(), kvcast_on_each}; }

// Rows [rows, width], `stride` numbers apart; no data where they do not lie like that.
struct kvcast_rows {
  void* data = nullptr;
  int64_t rows = 0, stride = 0;

  kvcast_rows(AtenTensorHandle tensor, int64_t width) {
    int64_t count = 0, step = 1;
    const bool fits = aoti_torch_get_size(tensor, 0, &rows) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_size(tensor, 1, &count) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_stride(tensor, 0, &stride) == AOTI_TORCH_SUCCESS &&
                      aoti_torch_get_stride(tensor, 1, &step) == AOTI_TORCH_SUCCESS;
    if (fits && count == width && (step == 1 || width == 1)) aoti_torch_get_data_ptr(tensor, &data);
  }
};

// The descriptor of a packed matrix; null if its version is not the one compiled for.
static const kvcast_matrix* kvcast_words(AtenTensorHandle tensor) {
  void* data = nullptr;
  if (aoti_torch_get_data_ptr(tensor, &data) != AOTI_TORCH_SUCCESS) return nullptr;
  const kvcast_matrix* words = static_cast<const kvcast_matrix*>(data);
  return words->version == 1 ? words : nullptr;
}

static float* kvcast_result(int64_t rows, int64_t width, AtenTensorHandle* result) {
  const int64_t sizes[] = {rows, width}, strides[] = {width, 1};
  void* data = nullptr;
  const bool made =
      aoti_torch_empty_strided(2, sizes, strides, aoti_torch_dtype_float32(),
                               aoti_torch_device_type_cpu(), 0, result) == AOTI_TORCH_SUCCESS &&
      aoti_torch_get_data_ptr(*result, &data) == AOTI_TORCH_SUCCESS;
  return made ? static_cast<float*>(data) : nullptr;
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_multiply_packed(
    AtenTensorHandle hidden, AtenTensorHandle matrix, int64_t outputs, AtenTensorHandle* result) {
  const kvcast_matrix* words = kvcast_words(matrix);
  if (!words || words->outputs != outputs) return AOTI_TORCH_FAILURE;
  const kvcast_rows x(hidden, words->inputs);
  float* out = kvcast_result(x.rows, outputs, result);
  if (x.rows == 0) return AOTI_TORCH_SUCCESS;
  if (!x.data || !out) return AOTI_TORCH_FAILURE;
  const kvcast_lent threads = kvcast_threads();
  return words->call->multiply(words, static_cast<const float*>(x.data), x.stride, x.rows, out,
                               &threads);
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_look_up_packed(
    AtenTensorHandle ids, AtenTensorHandle matrix, int64_t inputs, AtenTensorHandle* result) {
  const kvcast_matrix* words = kvcast_words(matrix);
  int64_t count = 0, step = 1;
  void* data = nullptr;
  const bool fits = words && words->inputs == inputs &&
                    aoti_torch_get_size(ids, 0, &count) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_stride(ids, 0, &step) == AOTI_TORCH_SUCCESS &&
                    aoti_torch_get_data_ptr(ids, &data) == AOTI_TORCH_SUCCESS;
  if (!fits || (step != 1 && count > 1)) return AOTI_TORCH_FAILURE;
  float* out = kvcast_result(count, inputs, result);
  if (count == 0) return AOTI_TORCH_SUCCESS;
  if (!data || !out) return AOTI_TORCH_FAILURE;
  return words->call->look_up(words, static_cast<const int64_t*>(data), count, out);
}

__attribute__((visibility("hidden"))) AOTITorchError aoti_torch_cpu_mix_packed(
    AtenTensorHandle hidden, AtenTensorHandle router_logits, AtenTensorHandle gate_up,
    AtenTensorHandle down, int64_t each, AtenTensorHandle* result) {
  const kvcast_matrix *up = kvcast_words(gate_up), *last = kvcast_words(down);
  if (!up || !last) return AOTI_TORCH_FAILURE;
  const kvcast_rows x(hidden, up->inputs), logits(router_logits, up->count);
  float* out = kvcast_result(x.rows, up->inputs, result);
  if (x.rows == 0) return AOTI_TORCH_SUCCESS;
  if (!x.data || !logits.data || logits.rows != x.rows || !out) return AOTI_TORCH_FAILURE;
  const kvcast_lent threads = kvcast_threads();
  return up->call->mix(up, last, static_cast<const float*>(x.data), x.stride, x.rows,
                       static_cast<const float*>(logits.data), logits.stride, each, out, &threads);
}
}
