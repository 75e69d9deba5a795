// Batch normalization of one client in single precision, over the examples of x [example, position, channel] whose
// weight is not zero.

#include <cmath>

#include "call_frame.h"
#include "tiles.h"

constexpr int kLanes = 8;
typedef Vector<kLanes>::Type Channels;

struct Batch {
  int64_t examples, positions, channels;
  const float* weights;

  Batch(const Array<float>& x, const float* weights)
      : examples(x.dims[0]), positions(x.dims[1]), channels(x.dims[2]), weights(weights) {}

  float NumEntries() const {
    float count = 0;
    for (int64_t e = 0; e < examples; ++e) count += weights[e] != 0;
    return std::max(count * positions, 1.0f);
  }
};

// `compute(first)` for channels in steps of V registers, V a constant of the program.
template <typename Compute>
static void ForChannels(int64_t channels, Compute&& compute) {
  int64_t first = 0;
  for (; first + 4 * kLanes <= channels; first += 4 * kLanes) compute(first, std::integral_constant<int, 4>());
  for (; first < channels; first += kLanes) compute(first, std::integral_constant<int, 1>());
}

// K sums over entries of V registers of channels: `add` gets the index of the first of them and the sums of an example.
template <int K, int V, typename Add>
static void Sum(const Batch& batch, int64_t first, bool is_weighted, Channels (&sums)[K][V], Add&& add) {
  for (int64_t e = 0; e < batch.examples; ++e) {
    if (is_weighted && batch.weights[e] == 0) continue;
    Channels own[K][V] = {};  // less is rounded than in one long sum
    for (int64_t p = 0; p < batch.positions; ++p) add((e * batch.positions + p) * batch.channels + first, own);
    for (int k = 0; k < K; ++k)
      for (int v = 0; v < V; ++v) sums[k][v] += own[k][v];
  }
}

static inline Channels& At(const float* values, int64_t i) {
  return *reinterpret_cast<Channels*>(const_cast<float*>(values) + i);
}

static inline Channels Root(Channels x) {
  for (int lane = 0; lane < kLanes; ++lane) x[lane] = std::sqrt(x[lane]);
  return x;
}

// x, weights [example], scale, bias [channel], epsilon [] -> y, mean, variance [channel]
extern "C" XLA_FFI_Error* batch_norm(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto x = Argument<float>(frame, 0);
  const float *scale = Argument<float>(frame, 2).data, *bias = Argument<float>(frame, 3).data;
  const float epsilon = *Argument<float>(frame, 4).data;
  float *y = Result<float>(frame, 0).data, *mean = Result<float>(frame, 1).data, *variance = Result<float>(frame, 2).data;
  const Batch batch(x, Argument<float>(frame, 1).data);
  const float num = batch.NumEntries();
  ForChannels(batch.channels, [&](int64_t first, auto registers) {
    constexpr int V = decltype(registers)::value;
    Channels m[1][V] = {}, squares[1][V] = {}, factor[V];
    Sum(batch, first, true, m, [&](int64_t i, auto& sums) {
      for (int v = 0; v < V; ++v) sums[0][v] += At(x.data, i + v * kLanes);
    });
    for (int v = 0; v < V; ++v) m[0][v] /= num;
    Sum(batch, first, true, squares, [&](int64_t i, auto& sums) {
      for (int v = 0; v < V; ++v) {
        const Channels distance = At(x.data, i + v * kLanes) - m[0][v];
        sums[0][v] += distance * distance;
      }
    });
    for (int v = 0; v < V; ++v) {
      const int64_t c = first + v * kLanes;
      At(mean, c) = m[0][v], At(variance, c) = squares[0][v] / num;
      factor[v] = At(scale, c) / Root(At(variance, c) + epsilon);
    }
    for (int64_t row = 0; row < batch.examples * batch.positions; ++row)
      for (int v = 0; v < V; ++v) {
        const int64_t c = first + v * kLanes, i = row * batch.channels + c;
        At(y, i) = (At(x.data, i) - m[0][v]) * factor[v] + At(bias, c);
      }
  });
  return nullptr;
}

// The gradient for y, x, weights, scale, mean, variance, epsilon -> the gradients for x, scale and bias
extern "C" XLA_FFI_Error* batch_norm_gradient(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const auto x = Argument<float>(frame, 1);
  const float *gradient = Argument<float>(frame, 0).data, *scale = Argument<float>(frame, 3).data;
  const float *mean = Argument<float>(frame, 4).data, *variance = Argument<float>(frame, 5).data;
  const float epsilon = *Argument<float>(frame, 6).data;
  float* for_x = Result<float>(frame, 0).data;
  float *for_scale = Result<float>(frame, 1).data, *for_bias = Result<float>(frame, 2).data;
  const Batch batch(x, Argument<float>(frame, 2).data);
  const float num = batch.NumEntries();
  ForChannels(batch.channels, [&](int64_t first, auto registers) {
    constexpr int V = decltype(registers)::value;
    Channels sums[2][V] = {}, m[V], factor[V], slope[V];
    for (int v = 0; v < V; ++v) m[v] = At(mean, first + v * kLanes);
    Sum(batch, first, false, sums, [&](int64_t i, auto& own) {
      for (int v = 0; v < V; ++v) {
        const Channels of = At(gradient, i + v * kLanes);
        own[0][v] += of, own[1][v] += of * (At(x.data, i + v * kLanes) - m[v]);
      }
    });
    for (int v = 0; v < V; ++v) {
      const int64_t c = first + v * kLanes;
      const Channels precision = 1 / Root(At(variance, c) + epsilon);
      At(for_bias, c) = sums[0][v], At(for_scale, c) = sums[1][v] * precision;
      factor[v] = At(scale, c) * precision;
      slope[v] = sums[1][v] * precision * precision / num;
      sums[0][v] /= num;
    }
    for (int64_t e = 0; e < batch.examples; ++e) {
      const float weight = batch.weights[e] != 0;
      for (int64_t p = 0; p < batch.positions; ++p)
        for (int v = 0; v < V; ++v) {
          const int64_t i = (e * batch.positions + p) * batch.channels + first + v * kLanes;
          const Channels across = sums[0][v] + (At(x.data, i) - m[v]) * slope[v];
          At(for_x, i) = factor[v] * (At(gradient, i) - weight * across);
        }
    }
  });
  return nullptr;
}
