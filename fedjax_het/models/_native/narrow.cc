// Products of matrices with few columns, in single precision: those with a narrow kernel, and for its gradient.

#include "call_frame.h"
#include "tiles.h"

struct Matrix {
  const float* data;
  int64_t rows, count, row, next;  // element (r, i), i < count, is data[r * row + i * next]
};

// out = a b, in panels of N registers of W columns. The last register ends with the row and overlaps the one before it,
// so that nothing beyond the matrices is read or written.
template <int W, int N>
static void Multiply(const Matrix& a, const float* b, int64_t columns, float* out) {
  const int64_t width = std::min<int64_t>(W * N, columns);
  for (int64_t start = 0; start < columns; start += width) {
    const int64_t first = std::min(start, columns - width);
    Tiles(a.rows, [&](int64_t row, auto rows) {
      constexpr int R = decltype(rows)::value;
      typename Vector<W>::Type sums[R][N] = {};
      Accumulate<W, N, R>(sums, a.data + row * a.row, a.row, a.next, b + first, columns, a.count, width - W);
#pragma GCC unroll 16
      for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
        for (int v = 0; v < N; ++v)
          std::memcpy(out + (row + r) * columns + first + (v + 1 < N ? 0 : width - W), &sums[r][v], 4 * W);
    });
  }
}

// out = a b, with W / 2 to W columns in one register, which reads the next row of b with its own; the last row is copied.
template <int W>
static void MultiplyShort(const Matrix& a, const float* b, int64_t columns, float* out) {
  const int64_t others = a.count - 1;
  const Floats last = LoadSome(b + others * columns, columns);
  Tiles<kNarrowTile>(a.rows, [&](int64_t row, auto rows) {
    constexpr int R = decltype(rows)::value;
    typename Vector<W>::Type sums[R][1] = {};
    const float* const left = a.data + row * a.row;
    Accumulate<W, 1, R>(sums, left, a.row, a.next, b, columns, others);
    Accumulate<W, 1, R>(sums, left + others * a.next, a.row, a.next, reinterpret_cast<const float*>(&last), 0, 1);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) StoreSome<W>(out + (row + r) * columns, sums[r][0], columns);
  });
}

// For each group, out = a b. `describe` gives a but for its data.
template <typename Describe>
static XLA_FFI_Error* Run(XLA_FFI_CallFrame* frame, Describe&& describe) {
  if (AnswersVersion(frame)) return nullptr;
  const auto a = Argument<float>(frame, 0);
  const int64_t columns = Argument<float>(frame, 1).FromLast(1);
  Matrix left = describe(a.FromLast(2), a.FromLast(1));
  return EachGroup(frame, 2, [&](const float* data, const float* right, float* to) {
    left.data = data;
    if (columns >= (kWide == 16 ? 17 : 8))
      Multiply<kWide, 2>(left, right, columns, to);
    else if constexpr (kWide == 8)
      Multiply<4, 2>(left, right, columns, to);
    else  // with registers that are stored in part
      columns <= 8 ? MultiplyShort<8>(left, right, columns, to) : MultiplyShort<16>(left, right, columns, to);
  });
}

// x [..., n, i], kernel [..., i, o] -> [..., n, o]
extern "C" XLA_FFI_Error* narrow_product(XLA_FFI_CallFrame* frame) {
  return Run(frame, [](int64_t n, int64_t i) { return Matrix{nullptr, n, i, i, 1}; });
}

// x [..., n, i], y [..., n, o] -> [..., i, o], the sum over n
extern "C" XLA_FFI_Error* narrow_kernel_gradient(XLA_FFI_CallFrame* frame) {
  return Run(frame, [](int64_t n, int64_t i) { return Matrix{nullptr, i, n, 1, i}; });
}
