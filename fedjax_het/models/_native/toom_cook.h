// The matrices of Toom and Cook for tiles of 4 x 4 pixels of the output, and how they are applied to many tiles at once.
//
// They evaluate polynomials at points and interpolate. The points lie close to one and their powers are exact, which
// keeps rounding at two to four times that of the definition for kernels of 3, some 1e-6 of the root mean square, and at
// six to eleven times, some 4e-6, for kernels of 5.

#pragma once

#include "tiles.h"

constexpr int kOut = 4;  // pixels a side of a tile of the output

// Of the input, for a kernel of K, and as many products.
template <int K>
constexpr int kSide = kOut + K - 1;
template <int K>
constexpr int kPlanes = kSide<K> * kSide<K>;

// The finite points; infinity is the last. For 5, of many {0, a, -a, b, -b, c, -c}, those with the smallest error.
template <int K>
constexpr double kPoints[kSide<K> - 1] = {0, 0.75, -0.75, 1.5, -1.5};
template <>
constexpr double kPoints<5>[kSide<5> - 1] = {0, 0.5, -0.5, 1, -1, 2, -2};

template <int R, int C>
struct Matrix {
  float at[R][C];
};

constexpr double Power(double x, int n) { return n ? x * Power(x, n - 1) : 1; }

// Row i: the coefficients of prod_{j != i} (x - p_j); the last: of the product of all.
template <int K>
constexpr Matrix<kSide<K>, kSide<K>> ForInput() {
  constexpr int N = kSide<K>;
  Matrix<N, N> m{};
  for (int i = 0; i < N; ++i) {
    double c[N] = {1};
    for (int j = 0; j < N - 1; ++j)
      if (j != i)
        for (int k = N - 1; k >= 0; --k) c[k] = (k ? c[k - 1] : 0) - kPoints<K>[j] * c[k];
    for (int k = 0; k < N; ++k) m.at[i][k] = c[k];
  }
  return m;
}

// Row i: p_i^k / prod_{j != i} (p_i - p_j).
template <int K>
constexpr Matrix<kSide<K>, K> ForKernel() {
  constexpr int N = kSide<K>;
  Matrix<N, K> m{};
  for (int i = 0; i < N - 1; ++i) {
    double scale = 1;
    for (int j = 0; j < N - 1; ++j)
      if (j != i) scale *= kPoints<K>[i] - kPoints<K>[j];
    for (int k = 0; k < K; ++k) m.at[i][k] = Power(kPoints<K>[i], k) / scale;
  }
  m.at[N - 1][K - 1] = 1;
  return m;
}

// Row i: p_j^i.
template <int K>
constexpr Matrix<kOut, kSide<K>> ForOutput() {
  constexpr int N = kSide<K>;
  Matrix<kOut, N> m{};
  for (int i = 0; i < kOut; ++i)
    for (int j = 0; j < N - 1; ++j) m.at[i][j] = Power(kPoints<K>[j], i);
  m.at[kOut - 1][N - 1] = 1;
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
  static constexpr auto input = ForInput<K>();
  static constexpr auto kernel = ForKernel<K>();
  static constexpr auto output = ForOutput<K>();
  static constexpr auto kernel_back = Transposed(kernel);
  static constexpr auto output_back = Transposed(output);
};

// m times a column of vectors. The points come in pairs p, -p: their rows differ in the signs of odd entries, and so do
// their columns of a transposed matrix, so that a pair takes the products of one point. What is multiplied with zero is
// left out at compile time.
template <const auto& m, int R, int C, typename V>
static inline void Multiply(const V (&column)[C], V (&out)[R]) {
  if constexpr (R >= C) {
    const auto sum = [&](int i, int first, int step) {
      V total = {};
#pragma GCC unroll 8
      for (int k = first; k < C; k += step)
        if (m.at[i][k] != 0) total += m.at[i][k] * column[k];
      return total;
    };
    out[0] = sum(0, 0, 1);
    out[R - 1] = sum(R - 1, 0, 1);
#pragma GCC unroll 8
    for (int i = 1; i < R - 1; i += 2) {
      const V even = sum(i, 0, 2), odd = sum(i, 1, 2);
      out[i] = even + odd;
      out[i + 1] = even - odd;
    }
  } else {
    V even[C], odd[C];
    even[0] = odd[0] = column[0];
    even[C - 1] = odd[C - 1] = column[C - 1];
#pragma GCC unroll 8
    for (int k = 1; k < C - 1; k += 2) {
      even[k] = column[k] + column[k + 1];
      odd[k] = column[k] - column[k + 1];
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      out[i] = V{};
#pragma GCC unroll 8
      for (int k = 0; k < C; ++k)
        if (m.at[i][k] != 0 && (k % 2 || k == 0 || k == C - 1)) out[i] += m.at[i][k] * (i % 2 ? odd : even)[k];
    }
  }
}

// m X m' for `lanes` square matrices X side by side, of which entry e stands at from(e) and the result's at to(e). Whole
// vectors are read and written: up to kWide - 1 floats behind the last lane.
template <const auto& m, typename From, typename To>
static inline void Sandwich(From from, To to, int64_t lanes) {
  typedef typename Vector<kWide>::Type V;
  constexpr int R = sizeof(m.at) / sizeof(m.at[0]), C = sizeof(m.at[0]) / sizeof(float);
  for (int64_t lane = 0; lane < lanes; lane += kWide) {
    V half[R][C], line[R];
#pragma GCC unroll 8
    for (int j = 0; j < C; ++j) {
      V column[C];
#pragma GCC unroll 8
      for (int k = 0; k < C; ++k) column[k] = *reinterpret_cast<const V*>(from(k * C + j) + lane);
      Multiply<m>(column, line);
#pragma GCC unroll 8
      for (int i = 0; i < R; ++i) half[i][j] = line[i];
    }
#pragma GCC unroll 8
    for (int i = 0; i < R; ++i) {
      Multiply<m>(half[i], line);
#pragma GCC unroll 8
      for (int j = 0; j < R; ++j) *reinterpret_cast<V*>(to(i * R + j) + lane) = line[j];
    }
  }
}

// Entries at equal distances.
template <typename Entry>
static inline auto Spaced(Entry* first, int64_t step) {
  return [=](int e) { return first + e * step; };
}
