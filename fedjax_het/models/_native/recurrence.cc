// The loop of an LSTM over the positions of its sequences, and that of its gradient, on a CPU in single precision. A
// product with the recurrent weights has as many rows as the batch has sequences, too few to pay for packing them at
// every position: they are packed once for all.

#include "call_frame.h"
#include "tiles.h"

typedef int32_t Integers __attribute__((vector_size(4 * kWide), aligned(4)));

constexpr int kColumns = 2 * kWide;  // of a tile
constexpr int kGap = 16;             // floats between rows, so that those of equal columns share no set of the cache

// e^x, to one or two units in the last place: x = n ln 2 + r, and a polynomial of r (fitted on |r| < 0.35).
static inline Floats Exp(Floats x) {
  x = x < -87.0f ? Floats{} - 87.0f : x;
  x = x > 88.0f ? Floats{} + 88.0f : x;
  const Floats shifted = x * 1.442695f + 12582912.0f, n = shifted - 12582912.0f;  // rounds: 1.5 * 2^23
  const Floats r = x - n * 0.693359375f + n * 2.12194440e-4f;                    // ln 2 in two parts
  const Floats tail = 0.49999993f + r * (0.16666521f + r * (0.04166839f + r * (0.00836871f + r * 0.00138146f)));
  const Integers power = ((Integers)shifted - 0x4B400000 + 127) << 23;
  return (1.0f + (r + r * r * tail)) * (Floats)power;
}

static inline Floats Sigmoid(Floats x) { return 1.0f / (1.0f + Exp(-x)); }

// Near 0 by a polynomial (fitted on |x| < 0.625), where 1 - e^-2x would cancel.
static inline Floats Tanh(Floats x) {
  const Floats square = x * x, large = 1.0f - 2.0f / (Exp(2.0f * x) + 1.0f);
  const Floats small = -0.33333284f + square * (0.13331491f + square * (-0.0537435f + square * (0.02065058f + square * -0.00571704f)));
  return square < 0.390625f ? x + x * square * small : large;
}

// A matrix [depth, columns] in panels of kColumns columns, of which those that are missing are 0.
class Panels {
 public:
  // Element (i, j) is from[i * row + j * column].
  Panels(const float* from, int64_t depth, int64_t columns, int64_t row, int64_t column)
      : depth_(depth), columns_(columns), packed_(Count() * depth * kColumns) {
    packed_.Clear();
    const int64_t outer = row < column ? columns : depth, inner = row < column ? depth : columns;  // contiguous
    for (int64_t a = 0; a < outer; ++a)
      for (int64_t b = 0; b < inner; ++b) {
        const int64_t i = row < column ? b : a, j = row < column ? a : b;
        packed_[(j / kColumns * depth + i) * kColumns + j % kColumns] = from[i * row + j * column];
      }
  }

  // to = rows of `left` times the matrix.
  void Multiply(const float* left, int64_t rows, int64_t left_row, float* to, int64_t to_row) const {
    for (int64_t p = 0; p < Count(); ++p) {
      const int64_t first = p * kColumns, count = columns_ - first;
      const float* panel = packed_.data() + first * depth_;
      Tiles(rows, [&](int64_t row, auto r) {
        constexpr int R = decltype(r)::value;
        Floats sums[R][2] = {};
        Accumulate<kWide, 2, R>(sums, left + row * left_row, left_row, 1, panel, kColumns, depth_);
        for (int i = 0; i < R; ++i)
          for (int v = 0; v < 2; ++v)
            StoreSome<kWide>(to + (row + i) * to_row + first + v * kWide, sums[i][v], count - v * kWide);
      });
    }
  }

 private:
  int64_t Count() const { return (columns_ + kColumns - 1) / kColumns; }

  int64_t depth_, columns_;
  Room packed_;
};

struct Shape {
  int64_t groups, batch, length, units;  // a group is a client of a batch, with recurrent weights of its own
};

// states: [batch, length, unit] or [group, batch, length, unit]
static Shape Described(const Array<float>& states) {
  return {states.rank > 3 ? states.dims[0] : 1, states.FromLast(3), states.FromLast(2), states.FromLast(1)};
}

// W x + b [..., batch, length, 4 unit], U [..., unit, 4 unit] -> h_t, h_{t-1}, the open gates, c_t
extern "C" XLA_FFI_Error* recurrence(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(Result<float>(frame, 0));
  const float *received = Argument<float>(frame, 0).data, *recurrent = Argument<float>(frame, 1).data;
  float *hidden = Result<float>(frame, 0).data, *previous = Result<float>(frame, 1).data;
  float *gates = Result<float>(frame, 2).data, *cell = Result<float>(frame, 3).data;
  const int64_t units = s.units, width = 4 * units, stride = units + kGap;
  const Room last(s.batch * stride), product(s.batch * (width + kGap));
  for (int64_t g = 0; g < s.groups; ++g) {
    const Panels weights(recurrent + g * units * width, units, width, width, 1);
    last.Clear();
    product.Clear();
    for (int64_t t = 0; t < s.length; ++t) {
      if (t > 0) weights.Multiply(last.data(), s.batch, stride, product.data(), width + kGap);
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t j = 0; j < units; j += kWide) {
          const int64_t count = units - j, place = ((g * s.batch + b) * s.length + t) * units + j;
          const int64_t first = 4 * (place - j) + j;
          const auto load = [&](int part) {
            return LoadSome(received + first + part * units, count) +
                   LoadSome(&product[b * (width + kGap) + part * units + j], count);
          };
          const Floats i = Sigmoid(load(0)), f = Sigmoid(load(1) + 1.0f), c = Tanh(load(2)), o = Sigmoid(load(3));
          const Floats held = t > 0 ? LoadSome(cell + place - units, count) : Floats{};
          const Floats before = LoadSome(&last[b * stride + j], count);
          const Floats now = f * held + i * c, shown = o * Tanh(now), opened[] = {i, f, c, o};
          for (int part = 0; part < 4; ++part)
            StoreSome<kWide>(gates + first + part * units, opened[part], count);
          StoreSome<kWide>(cell + place, now, count);
          StoreSome<kWide>(previous + place, before, count);
          StoreSome<kWide>(hidden + place, shown, count);
          StoreSome<kWide>(&last[b * stride + j], shown, count);
        }
    }
  }
  return nullptr;
}

// The gradient for h_t, the open gates, c_t, U -> the gradient for W x + b
extern "C" XLA_FFI_Error* recurrence_gradient(XLA_FFI_CallFrame* frame) {
  if (AnswersVersion(frame)) return nullptr;
  const Shape s = Described(Argument<float>(frame, 0));
  const float *gradient = Argument<float>(frame, 0).data, *gates = Argument<float>(frame, 1).data;
  const float *cell = Argument<float>(frame, 2).data, *recurrent = Argument<float>(frame, 3).data;
  float* received = Result<float>(frame, 0).data;
  const int64_t units = s.units, width = 4 * units, stride = width + kGap;
  const Room change(s.batch * stride), hidden(s.batch * units), held(s.batch * units);
  for (int64_t g = 0; g < s.groups; ++g) {
    const Panels weights(recurrent + g * units * width, width, units, 1, width);
    hidden.Clear();
    held.Clear();
    for (int64_t t = s.length - 1; t >= 0; --t) {
      for (int64_t b = 0; b < s.batch; ++b)
        for (int64_t j = 0; j < units; j += kWide) {
          const int64_t count = units - j, place = ((g * s.batch + b) * s.length + t) * units + j;
          const int64_t first = 4 * (place - j) + j;
          const auto load = [&](const float* of, int64_t at) { return LoadSome(of + at, count); };
          const auto gate = [&](int part) { return load(gates, first + part * units); };
          const Floats i = gate(0), f = gate(1), c = gate(2), o = gate(3), bounded = Tanh(load(cell, place));
          const Floats before = t > 0 ? load(cell, place - units) : Floats{};
          const Floats of_hidden = load(gradient, place) + LoadSome(&hidden[b * units + j], count);
          const Floats of_cell = LoadSome(&held[b * units + j], count) + of_hidden * o * (1.0f - bounded * bounded);
          const Floats changes[] = {of_cell * c * i * (1.0f - i), of_cell * before * f * (1.0f - f),
                                    of_cell * i * (1.0f - c * c), of_hidden * bounded * o * (1.0f - o)};
          for (int part = 0; part < 4; ++part) {
            StoreSome<kWide>(received + first + part * units, changes[part], count);
            StoreSome<kWide>(&change[b * stride + part * units + j], changes[part], count);
          }
          StoreSome<kWide>(&held[b * units + j], of_cell * f, count);
        }
      if (t > 0) weights.Multiply(change.data(), s.batch, stride, hidden.data(), units);
    }
  }
  return nullptr;
}
