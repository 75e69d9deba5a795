// Batch normalization of one client in single precision, over the examples of x [example, position, channel] whose
// weight is not zero.

#include <cmath>

#include "call_frame.h"
#include "tiles.h"

constexpr int kNarrow = 8;  // channels, of which there is a multiple

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

  // visit(index of the channel `first` at every position of an example).
  template <typename Visit>
  void EachPosition(int64_t example, int64_t first, Visit&& visit) const {
    for (int64_t p = 0; p < positions; ++p) visit((example * positions + p) * channels + first);
  }
};

// `compute(first, lanes, registers)` for channels in steps of both, which are constants of the program. A step of all
// channels of a pixel reads memory in its order.
template <typename Compute>
static void ForChannels(int64_t channels, Compute&& compute) {
  int64_t first = 0;
  for (; first + 4 * kWide <= channels; first += 4 * kWide)
    compute(first, std::integral_constant<int, kWide>(), std::integral_constant<int, 4>());
  for (; first < channels; first += kNarrow)
    compute(first, std::integral_constant<int, kNarrow>(), std::integral_constant<int, 1>());
}

template <int W>
static inline typename Vector<W>::Type& At(const float* values, int64_t i) {
  return *reinterpret_cast<typename Vector<W>::Type*>(const_cast<float*>(values) + i);
}

template <typename Channels>
static inline Channels Root(Channels x) {
  for (size_t lane = 0; lane < sizeof(x) / sizeof(float); ++lane) x[lane] = std::sqrt(x[lane]);
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
  const float num = batch.NumEntries(), positions = batch.positions;
  ForChannels(batch.channels, [&](int64_t first, auto lanes, auto registers) {
    constexpr int W = decltype(lanes)::value, V = decltype(registers)::value;
    typedef typename Vector<W>::Type Channels;
    // The moments of one example, which stays in the cache for its second reading, are added to those of the others.
    Channels m[V] = {}, squares[V] = {};
    float seen = 0;
    for (int64_t e = 0; e < batch.examples; ++e) {
      if (batch.weights[e] == 0) continue;
      Channels own[V] = {}, own_squares[V] = {};
      batch.EachPosition(e, first, [&](int64_t i) {
        for (int v = 0; v < V; ++v) own[v] += At<W>(x.data, i + v * W);
      });
      for (int v = 0; v < V; ++v) own[v] /= positions;
      batch.EachPosition(e, first, [&](int64_t i) {
        for (int v = 0; v < V; ++v) {
          const Channels distance = At<W>(x.data, i + v * W) - own[v];
          own_squares[v] += distance * distance;
        }
      });
      ++seen;
      for (int v = 0; v < V; ++v) {
        const Channels distance = own[v] - m[v], moved = distance / seen;
        m[v] += moved;
        squares[v] += own_squares[v] + distance * moved * (positions * (seen - 1));
      }
    }
    Channels factor[V], shift[V];
    for (int v = 0; v < V; ++v) {
      const int64_t c = first + v * W;
      At<W>(mean, c) = m[v], At<W>(variance, c) = squares[v] / num;
      factor[v] = At<W>(scale, c) / Root(At<W>(variance, c) + epsilon), shift[v] = At<W>(bias, c);
    }
    for (int64_t e = batch.examples; e-- > 0;)  // the last ones are still in the cache
      batch.EachPosition(e, first, [&](int64_t i) {
        for (int v = 0; v < V; ++v) At<W>(y, i + v * W) = (At<W>(x.data, i + v * W) - m[v]) * factor[v] + shift[v];
      });
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
  ForChannels(batch.channels, [&](int64_t first, auto lanes, auto registers) {
    constexpr int W = decltype(lanes)::value, V = decltype(registers)::value;
    typedef typename Vector<W>::Type Channels;
    Channels sum[V] = {}, product[V] = {}, m[V], factor[V], slope[V];
    for (int v = 0; v < V; ++v) m[v] = At<W>(mean, first + v * W);
    for (int64_t e = 0; e < batch.examples; ++e) {
      Channels own[V] = {}, own_product[V] = {};  // less is rounded than in one long sum
      batch.EachPosition(e, first, [&](int64_t i) {
        for (int v = 0; v < V; ++v) {
          const Channels of = At<W>(gradient, i + v * W);
          own[v] += of, own_product[v] += of * (At<W>(x.data, i + v * W) - m[v]);
        }
      });
      for (int v = 0; v < V; ++v) sum[v] += own[v], product[v] += own_product[v];
    }
    for (int v = 0; v < V; ++v) {
      const int64_t c = first + v * W;
      const Channels precision = 1 / Root(At<W>(variance, c) + epsilon);
      At<W>(for_bias, c) = sum[v], At<W>(for_scale, c) = product[v] * precision;
      factor[v] = At<W>(scale, c) * precision;
      slope[v] = product[v] * precision * precision / num;
      sum[v] /= num;
    }
    for (int64_t e = batch.examples; e-- > 0;) {
      const float weight = batch.weights[e] != 0;
      batch.EachPosition(e, first, [&](int64_t i) {
        for (int v = 0; v < V; ++v) {
          const Channels across = sum[v] + (At<W>(x.data, i + v * W) - m[v]) * slope[v];
          At<W>(for_x, i + v * W) = factor[v] * (At<W>(gradient, i + v * W) - weight * across);
        }
      });
    }
  });
  return nullptr;
}
