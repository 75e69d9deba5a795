// The matrices of Toom and Cook for tiles of six pixels a side, and how they are applied to many tiles at once.
//
// They evaluate polynomials at six points and interpolate. The points lie close to one and their powers are exact, which
// keeps rounding at about twice (images) and three times (kernels) that of the definition.

#pragma once

#include "tiles.h"

namespace winograd {

constexpr int kSide = 6, kPlanes = kSide * kSide;
constexpr double kPoints[kSide - 1] = {0, 0.75, -0.75, 1.5, -1.5};  // and infinity

template <int R, int C>
struct Matrix {
  float at[R][C];
};

constexpr double Power(double x, int n) { return n ? x * Power(x, n - 1) : 1; }

// Row i: the coefficients of prod_{j != i} (x - p_j); the last: of the product of all.
constexpr Matrix<kSide, kSide> ForInput() {
  Matrix<kSide, kSide> m{};
  for (int i = 0; i < kSide; ++i) {
    double c[kSide] = {1};
    for (int j = 0; j < kSide - 1; ++j)
      if (j != i)
        for (int k = kSide - 1; k >= 0; --k) c[k] = (k ? c[k - 1] : 0) - kPoints[j] * c[k];
    for (int k = 0; k < kSide; ++k) m.at[i][k] = c[k];
  }
  return m;
}

// Row i: p_i^k / prod_{j != i} (p_i - p_j).
template <int K>
constexpr Matrix<kSide, K> ForKernel() {
  Matrix<kSide, K> m{};
  for (int i = 0; i < kSide - 1; ++i) {
    double scale = 1;
    for (int j = 0; j < kSide - 1; ++j)
      if (j != i) scale *= kPoints[i] - kPoints[j];
    for (int k = 0; k < K; ++k) m.at[i][k] = Power(kPoints[i], k) / scale;
  }
  m.at[kSide - 1][K - 1] = 1;
  return m;
}

// Row i: p_j^i.
template <int M>
constexpr Matrix<M, kSide> ForOutput() {
  Matrix<M, kSide> m{};
  for (int i = 0; i < M; ++i)
    for (int j = 0; j < kSide - 1; ++j) m.at[i][j] = Power(kPoints[j], i);
  m.at[M - 1][kSide - 1] = 1;
  return m;
}

template <int R, int C>
constexpr Matrix<C, R> Transposed(const Matrix<R, C>& from) {
  Matrix<C, R> m{};
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < C; ++j) m.at[j][i] = from.at[i][j];
  return m;
}

template <int K>
struct Maps {
  static constexpr int kOut = kSide + 1 - K;
  static constexpr auto input = ForInput();
  static constexpr auto kernel = ForKernel<K>();
  static constexpr auto output = ForOutput<kOut>();
  static constexpr auto kernel_back = Transposed(kernel);
  static constexpr auto output_back = Transposed(output);
};

// Entry i of m times a column of vectors; what is multiplied with zero is left out at compile time.
template <const auto& m, int C, typename V>
static inline V Row(int i, const V (&column)[C]) {
  V sum = {};
#pragma GCC unroll 6
  for (int k = 0; k < C; ++k)
    if (m.at[i][k] != 0) sum += m.at[i][k] * column[k];
  return sum;
}

// m X m' for `lanes` square matrices X side by side; the entries of one lie `from_entry` and `to_entry` floats apart.
// Whole vectors are read and written: up to kWide - 1 floats behind the last lane.
template <const auto& m>
static inline void Sandwich(const float* from, int64_t from_entry, float* to, int64_t to_entry, int64_t lanes) {
  typedef typename Vector<kWide>::Type V;
  constexpr int R = sizeof(m.at) / sizeof(m.at[0]), C = sizeof(m.at[0]) / sizeof(float);
  for (int64_t lane = 0; lane < lanes; lane += kWide) {
    V half[R][C];
#pragma GCC unroll 6
    for (int j = 0; j < C; ++j) {
      V column[C];
#pragma GCC unroll 6
      for (int k = 0; k < C; ++k) column[k] = *reinterpret_cast<const V*>(from + (k * C + j) * from_entry + lane);
#pragma GCC unroll 6
      for (int i = 0; i < R; ++i) half[i][j] = Row<m, C>(i, column);
    }
#pragma GCC unroll 6
    for (int i = 0; i < R; ++i)
#pragma GCC unroll 6
      for (int j = 0; j < R; ++j) *reinterpret_cast<V*>(to + (i * R + j) * to_entry + lane) = Row<m, C>(j, half[i]);
  }
}

}  // namespace winograd
